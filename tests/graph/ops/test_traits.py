"""Traits of operators: they hold for the references, and are stated where rewrites need them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial

import numpy as np
import pytest

pytest.importorskip("onnx")

from cpuconv.graph.ir import Node, Value  # noqa: E402
from cpuconv.graph.ops import TABLE, drawing, names_of, traits_of  # noqa: E402
from cpuconv.graph.ops.base import Op  # noqa: E402
from cpuconv.graph.ops.pooling import windows_overlap_input  # noqa: E402
from cpuconv.graph.ops.recurrent import CELLS  # noqa: E402
from cpuconv.graph.ops.traits import Int8, Movement, Sign  # noqa: E402
from cpuconv.symbolic.sizes import SIZES, Trace, now  # noqa: E402
from support.graph.cases import CASES, drawn  # noqa: E402
from support.graph.lowered import offers  # noqa: E402
from support.graphs import Case  # noqa: E402

COUNT = 30  # cases of an operator
_FIRST = 4  # cases that show of most operators that they compute something
TRAITS = {"joins", "commutative", "movement", "int8", "sign", "product", "window", "rowwise"}
TRAITS |= {"follows_sizes", "shape_only"}
MOVES_UNSTATED = {
    "Compress": "has no kernels",
    "Copy": "is made after all rewrites",
    "Leading": "has no kernels",
    "Split": "has several outputs",
}
"""Operators whose results are elements of their first input, whatever these are, but not `Int8.MOVED`; and why."""

Arrays = Sequence[np.ndarray | None]
Function = Callable[[np.ndarray], np.ndarray]


def having(condition: Callable[[Op], bool]) -> pytest.MarkDecorator:
    """Parametrize a test by the operators that satisfy a condition."""
    return pytest.mark.parametrize("op", names_of(condition))


def node_of(op: str, case: Case) -> Node:
    names = ["" if array is None else f"x{at}" for at, array in enumerate(case.arrays)]
    return TABLE[op].node(names, [f"y{at}" for at in range(case.outputs)], **case.attributes)


def results(op: str, case: Case, arrays: Arrays | None = None) -> list[np.ndarray]:
    """Outputs of an operator for the inputs of a case, or for others in their place."""
    node, arrays = node_of(op, case), case.arrays if arrays is None else arrays
    values = [None if array is None else Value.of(array) for array in arrays]
    return TABLE[op].evaluate(node, arrays, [value.dtype for value in TABLE[op].infer(node, values)])


def with_data(op: str, case: Case, function: Function) -> list[np.ndarray | None]:
    """Inputs of a case, with a function applied to those that are data."""
    count = len(case.arrays) if TABLE[op].joins else 1
    return [function(array) if at < count and array is not None else array for at, array in enumerate(case.arrays)]


def floored(x: np.ndarray) -> np.ndarray:
    """A nondecreasing function that maps different numbers to one."""
    return np.floor(x / 2).astype(x.dtype)


def numbered(x: np.ndarray) -> np.ndarray:
    """Different elements."""
    return np.arange(x.size, dtype=x.dtype).reshape(x.shape)


def commutes(op: str, case: Case) -> bool:
    moved = results(op, case, with_data(op, case, floored))[0]
    return np.array_equal(moved, floored(results(op, case)[0]))


def test_defaults_promise_nothing():
    row = Op("", lambda node, inputs: [], lambda node, arrays: ())
    assert {each.name for each in fields(Op)} >= TRAITS
    assert not any(getattr(row, name) for name in TRAITS)


def test_nodes_with_their_own_semantics_have_no_traits():
    node = Node("Relu", ("x",), ("y",))
    assert traits_of(node) is TABLE["Relu"]
    assert not any(getattr(traits_of(Node("If", ("x",), ("y",))), name) for name in TRAITS)
    foreign = Node("Relu", ("x",), ("y",), semantics=TABLE["Relu"])
    assert traits_of(foreign).int8 is Int8.NEVER


@having(lambda op: op.name.startswith("Quantized"))
def test_quantised_versions_have_no_traits(op):
    assert not any(getattr(TABLE[op], name) for name in TRAITS)


@having(lambda op: op.commutative)
def test_commutative(op):
    assert TABLE[op].joins
    for case in drawn(CASES[op], COUNT):
        for order in itertools.permutations(case.arrays):
            np.testing.assert_allclose(results(op, case, order)[0], results(op, case)[0], rtol=1e-5, atol=1e-6)


@having(lambda op: op.int8 is Int8.MOVED)
def test_conversions_move_across(op):
    for case in drawn(CASES[op], COUNT):
        assert commutes(op, case)
        data = [array for array in case.arrays[: None if TABLE[op].joins else 1] if array is not None]
        assert set(results(op, case)[0].flat) <= {*itertools.chain(*(array.flat for array in data)), -np.inf}


@having(lambda op: op.int8 is Int8.MOVED)
def test_what_conversions_move_across_supports_int8(op):
    def stored(case: Case) -> Case:
        return case._replace(arrays=with_data(op, case, lambda x: x.astype(np.uint8)))

    cases = map(stored, drawn(CASES[op], COUNT))
    assert any(offers(node_of(op, case), case.arrays, range(1, len(case.arrays))) for case in cases)


@having(lambda op: op.int8 is Int8.SAME_SCALE)
def test_results_are_within_the_range_of_the_input(op):
    for case in drawn(CASES[op], COUNT):
        x, mode = case.arrays[0], case.attributes.get("mode")
        cropped = case.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        if x.size and mode != "cubic" and not cropped:
            for y in results(op, case):
                assert ((x.min() - 1e-6 <= y) & (y <= x.max() + 1e-6)).all()


def test_operators_that_move_data_say_so():
    found = set()
    for op in names_of(lambda op: op.int8 is not Int8.MOVED and op.name in CASES and "to" not in op.attributes):
        if all(_moves(op, case) for count in (_FIRST, COUNT) for case in drawn(CASES[op], count)):
            found.add(op)
    assert found == MOVES_UNSTATED.keys()


def _moves(op: str, case: Case) -> bool:
    """Whether a case gives elements of its first input at places that do not depend on elements."""
    x, y = case.arrays[0], results(op, case)[0]
    if x.dtype.kind == "b" or x.dtype != y.dtype:
        return False
    places = results(op, case, [numbered(x), *case.arrays[1:]])[0]
    return set(places.flat) <= {*range(x.size)} and np.array_equal(y, x.ravel()[places.astype(int)])


@having(lambda op: op.movement > Movement.NONE)
def test_movement(op):
    row = TABLE[op]
    assert row.int8 is Int8.MOVED
    for case in drawn(CASES[op], COUNT):
        x = numbered(case.arrays[0])
        y = results(op, case, [x, *case.arrays[1:]])[0].ravel()
        assert len(set(y)) == y.size and set(y) <= set(x.flat)
        assert row.movement < Movement.ALL or y.size == x.size
        assert row.movement < Movement.IN_ORDER or np.array_equal(y, x.ravel())


@having(lambda op: op.sign is Sign.NONNEGATIVE)
def test_nonnegative(op):
    for case in drawn(CASES[op], COUNT):
        assert not (results(op, case)[0] < 0).any()


@having(lambda op: op.sign is Sign.KEPT)
def test_sign_is_kept(op):
    for case in drawn(CASES[op], COUNT):
        if op != "MaxPool" or windows_overlap_input(node_of(op, case), case.arrays[0].shape):
            assert not (results(op, case, with_data(op, case, np.abs))[0] < 0).any()


@having(lambda op: op.product and op.name not in (*CELLS, "ScaledDotProductAttention"))
def test_products_are_affine(op):
    for case in drawn(CASES[op], COUNT):
        case = case._replace(
            attributes={**case.attributes, "activation": None} if TABLE[op].has_epilogue else case.attributes
        )
        x, rest = (
            case.arrays[0].astype(np.float64),
            [None if each is None else each.astype(np.float64) for each in case.arrays[1:]],
        )
        zero, one, two = (TABLE[op].reference(node_of(op, case), [factor * x, *rest]) for factor in (0, 1, 2))
        np.testing.assert_allclose(two - one, one - zero, atol=1e-9)


@having(lambda op: op.window)
def test_windows_keep_axes(op):
    for case in drawn(CASES[op], COUNT):
        assert results(op, case)[0].ndim == case.arrays[0].ndim


def by_rows(op: str) -> Iterator[Case]:
    for case in drawn(CASES[op], 5 * COUNT):
        x, axis = case.arrays[0], case.attributes.get("axis", -1)
        if x.ndim > 1 and axis in (-1, x.ndim - 1) and not any(each is not None for each in case.arrays[3:]):
            yield case._replace(arrays=case.arrays[:3], outputs=1)


@having(lambda op: op.rowwise)
def test_rowwise(op):
    cases = [*by_rows(op)]
    assert cases
    for case in cases:
        x, attributes = case.arrays[0], dict(case.attributes)
        attributes |= {"axis": -1} if "axis" in attributes else {}
        rows = Case([x.reshape(-1, x.shape[-1]), *case.arrays[1:]], attributes)
        whole = results(op, Case(case.arrays, attributes))[0]
        np.testing.assert_allclose(results(op, rows)[0].reshape(whole.shape), whole, rtol=1e-6)


@having(lambda op: op.follows_sizes)
def test_sizes_are_followed(op):
    for case in drawn(CASES[op], COUNT):
        counted = with_data(op, case, lambda x: np.abs(x * 10).astype(np.int64))
        trace = Trace([int(size) for array in counted for size in array.flat])
        symbolic = with_data(op, case._replace(arrays=counted), partial(_sizes, sizes=iter(trace.inputs)))
        node = node_of(op, case)
        with trace.strictly():
            made = TABLE[op].reference(node, symbolic)
        np.testing.assert_array_equal(
            np.vectorize(now, otypes=[np.int64])(np.asarray(made, SIZES)), results(op, case, counted)[0]
        )


def _sizes(x: np.ndarray, sizes: Iterator[object]) -> np.ndarray:
    array = np.empty(x.size, SIZES)
    array[:] = list(itertools.islice(sizes, x.size))
    return array.reshape(x.shape)


@having(lambda op: op.shape_only)
def test_shape_only(op):
    for case in drawn(CASES[op], COUNT):
        (before,), (after,) = results(op, case), results(op, case, [case.arrays[0] + 1, *case.arrays[1:]])
        np.testing.assert_array_equal(before, after)


def test_operators_that_draw():
    assert {*names_of(lambda op: op.draws)} == {op.name for op in drawing.OPS}


@having(lambda op: op.has_epilogue)
def test_epilogues_add_a_fourth_operand(op):
    assert TABLE[op].signature.partition("->")[0].split(",")[3].strip().startswith("added?")
