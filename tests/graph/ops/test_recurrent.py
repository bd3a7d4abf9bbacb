"""What is special to recurrent layers: batch-first operands, other types, what is refused, and their kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.elements import from_bfloat16, to_bfloat16
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.graph.ir import Value  # noqa: E402
from cpuconv.graph.ops import TABLE, recurrent_states  # noqa: E402
from cpuconv.graph.ops import recurrent as operators  # noqa: E402
from cpuconv.isa import current
from cpuconv.kernels.binding.tensor_view import DENSE, DENSE_BF16  # noqa: E402
from cpuconv.kernels.emit.product import BY_NAME  # noqa: E402
from cpuconv.kernels.recurrent import recurrent  # noqa: E402
from cpuconv.kernels.recurrent.recurrent_bf16 import bf16_instructions, widens  # noqa: E402
from cpuconv.network.interpret import run  # noqa: E402
from support.graph import lowered  # noqa: E402
from support.graphs import close  # noqa: E402

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op: str, dtype: type = np.float32, **attributes):
    """A layer of 3 inputs and 5 states, both ways, over 4 steps and 2 sequences; its operands."""
    rng, rows = np.random.default_rng(0), GATES[op] * 5
    states = [(2, 2, 5)] * (2 if op == "LSTM" else 1)
    shapes = [(4, 2, 3), (2, rows, 3), (2, rows, 5), (2, 2 * rows), None, *states]
    arrays = [None if shape is None else rng.normal(size=shape).astype(dtype) for shape in shapes]
    names = ["" if array is None else f"x{at}" for at, array in enumerate(arrays)]
    results = ["y", "h", "c"][: 1 + len(states)]
    return TABLE[op].node(names, results, **{"direction": "bidirectional", **attributes}), arrays


@pytest.mark.parametrize("op", GATES)
def test_batch_first(op):
    node, arrays = layer(op)
    arrays[4] = np.array([4, 2], np.int32)
    types = [np.dtype(np.float32)] * len(node.outputs)
    y, *last = run(node, arrays, types)
    turned = [array.swapaxes(0, 1) if at in (0, 5, 6) else array for at, array in enumerate(arrays)]
    first, _ = layer(op, layout=1)
    got, *states = run(first, turned, types)
    close(got, y.transpose(2, 0, 1, 3))
    for state, expected in zip(states, last, strict=True):
        close(state, expected.swapaxes(0, 1))
    assert not y[2:, :, 1].any() and y[:2, :, 1].all()  # nothing behind the end of a sequence


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types(op, dtype):
    node, arrays = layer(op, dtype)
    wide = [None if array is None else array.astype(np.float64) for array in arrays]
    for got, expected in zip(run(node, arrays, [np.dtype(dtype)] * 3), run(node, wide, [None] * 3), strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-3 if dtype == np.float16 else 0)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activations": ["Sigmoid", "Tanh", "Tanh", "Relu", "Tanh", "Tanh"]}, "must have the same activations"),
        ({"activations": ["Sigmoid", "Tanh", "Sine"] * 2}, "the activations must be 3 a direction, of Sigmoid"),
        ({"activations": ["Sigmoid"]}, "the activations must be 3 a direction"),
        ({"hidden_size": 6}, "'hidden_size' must be 5, not 6"),
        ({"direction": "forward"}, r"must be of shape \(1, 20, 3\)"),
    ],
)
def test_refused(attributes, message):
    node, arrays = layer("LSTM", **attributes)
    values = [None if array is None else Value(array.shape, array.dtype) for array in arrays]
    with pytest.raises(SourceError, match=message):
        TABLE["LSTM"].infer(node, values)


LANES = current().lanes
CONSTANT = (1, 2, 3)
FORMS = {
    "LSTM": {},
    "LSTM of one gate for two": {"input_forget": 1},
    "GRU": {},
    "GRU as PyTorch has it": {"linear_before_reset": 1},
    "RNN": {},
}


def sized(form: str, hidden: int, batch: int, direction: str, optional: bool, layout: int):
    """A layer of 5 steps and 7 inputs; with states, lengths and peepholes if `optional`."""
    rng, op = np.random.default_rng(hidden + batch), form.split()[0]
    directions, rows = 1 + (direction == "bidirectional"), GATES[op] * hidden
    states = [(batch, directions, hidden) if layout else (directions, batch, hidden)] * (2 if op == "LSTM" else 1)
    shapes = [(batch, 5, 7) if layout else (5, batch, 7), (directions, rows, 7), (directions, rows, hidden)]
    arrays = [rng.normal(size=shape).astype(np.float32) / np.sqrt(shape[-1], dtype=np.float32) for shape in shapes]
    arrays.append(rng.normal(size=(directions, 2 * rows)).astype(np.float32))
    if optional:
        arrays.append(rng.integers(0, 6, batch).astype(np.int32))
        arrays += [rng.normal(size=shape).astype(np.float32) for shape in states]
        arrays += [rng.normal(size=(directions, 3 * hidden)).astype(np.float32)] * (op == "LSTM")
    names = [f"x{at}" for at in range(len(arrays))]
    results = ["y", "h", "c"][: 1 + len(states)]
    return TABLE[op].node(names, results, direction=direction, layout=layout, **FORMS[form]), arrays


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("hidden", "batch", "direction", "optional", "layout"),
    [
        (1, 1, "forward", False, 0),
        (LANES - 1, 1, "bidirectional", False, 0),
        (LANES, 3, "reverse", True, 0),
        (LANES + 1, 8, "bidirectional", False, 1),
        (3 * LANES + 5, 2, "bidirectional", True, 1),
        (2 * LANES, 11, "forward", False, 0),
    ],
)
def test_kernels(form, hidden, batch, direction, optional, layout, threads):
    node, arrays = sized(form, hidden, batch, direction, optional, layout)
    constant = (*CONSTANT, 7) if len(arrays) > 7 else CONSTANT
    assert lowered.check(node, arrays, constant, threads, apart=optional) == 1


PRODUCTS = [product.name for product in bf16_instructions(current())]


def in_bfloat16(arrays):
    return [
        array if array is None or array.dtype != np.float32 else from_bfloat16(to_bfloat16(array)).reshape(array.shape)
        for array in arrays
    ]


def by_product(node, arrays, constant, state: str):
    """The offers in bfloat16 that multiply states so."""
    made = lowered.offers(node, arrays, constant, precision="bfloat16")
    assert [each.inputs[0] for each in made] == [DENSE, DENSE_BF16]
    return [replace(each, detail=replace(each.detail, state=state)) for each in made]


@pytest.mark.parametrize(("form", "layout"), [("LSTM", 1), ("GRU", 0)])
def test_inputs_may_be_bfloat16(form, layout):
    """Of numbers that bfloat16 holds; states and their products are float32."""
    node, arrays = sized(form, LANES + 1, 3, "bidirectional", False, layout)
    arrays = in_bfloat16(arrays)
    assert lowered.check(node, arrays, CONSTANT, made=by_product(node, arrays, CONSTANT, "")[1:]) == 1


@pytest.mark.parametrize("state", PRODUCTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("hidden", "batch", "direction", "optional", "layout"),
    [
        (1, 1, "forward", False, 0),
        (LANES - 1, 1, "bidirectional", True, 0),
        (2 * LANES, 7, "reverse", False, 1),
        (3 * LANES + 5, 2, "bidirectional", True, 1),
    ],
)
def test_states_may_be_multiplied_in_bfloat16(form, hidden, batch, direction, optional, layout, state, monkeypatch):
    """Against float64 sums of weights and states in bfloat16; a state between two of those may become the other one."""
    node, arrays = sized(form, hidden, batch, direction, optional, layout)
    arrays, constant = in_bfloat16(arrays), (*CONSTANT, 7) if len(arrays) > 7 else CONSTANT
    made, rounds = by_product(node, arrays, constant, state), not widens(BY_NAME[state])
    if rounds:
        stepped = operators.stepped

        def rounding(node, fed, multiplied, *rest):
            def narrow(vector, part):
                return multiplied(from_bfloat16(to_bfloat16(vector)).reshape(vector.shape).astype(vector.dtype), part)

            return stepped(node, fed, narrow, *rest)

        monkeypatch.setattr(operators, "stepped", rounding)
    for threads in (1, 2):
        tolerance = 2.0**-8 / np.sqrt(hidden) if rounds else 1e-5
        assert lowered.check(node, arrays, constant, threads, optional, tolerance, made) == 2


@pytest.mark.parametrize("state", PRODUCTS)
@pytest.mark.parametrize("form", ("LSTM", "GRU as PyTorch has it", "RNN"))
def test_workers_share_steps_in_bfloat16(form, state, monkeypatch):
    node, arrays = sized(form, 3 * LANES + 5, 2, "bidirectional", False, 0)
    offer = by_product(node, arrays, CONSTANT, state)[0]
    alone = lowered.run_offer(node, arrays, offer, CONSTANT, 1)
    monkeypatch.setattr(recurrent, "_SHARED_BYTES", 1)
    shared = lowered.run_offer(node, arrays, offer, CONSTANT, 24)
    assert all(map(np.array_equal, alone, shared))


def test_the_faster_product_of_states_is_taken(monkeypatch):
    """By the model: where weights come from far away they are half as many; of equal ways that of floats is taken."""
    node, arrays = sized("LSTM", 4 * LANES, 1, "forward", False, 0)
    kind = type(recurrent_states.machine())

    def states(rate: float, precision: str = "bfloat16") -> set[str]:
        monkeypatch.setattr(kind, "rate", lambda self, size: rate)
        return {each.detail.state for each in lowered.offers(node, arrays, CONSTANT, precision=precision)}

    assert len(states(1e-3) & {*PRODUCTS}) == 1
    monkeypatch.setattr(recurrent_states, "bf16_instructions", lambda isa: [BY_NAME["widened"]])
    assert (states(1e-3), states(1e9)) == ({"widened"}, {""})
    assert states(1e-3, "float32") == {""}


@pytest.mark.parametrize("form", FORMS)
def test_results_do_not_depend_on_the_number_of_threads(form):
    node, arrays = sized(form, LANES + 3, 7, "bidirectional", False, 0)
    (offer,) = lowered.offers(node, arrays, CONSTANT)
    one, two = (lowered.run_offer(node, arrays, offer, CONSTANT, threads) for threads in (1, 2))
    assert all(map(np.array_equal, one, two))


@pytest.mark.parametrize("far", (False, True), ids=("directions at once", "directions in turn"))
@pytest.mark.parametrize("form", ("LSTM", "GRU as PyTorch has it", "RNN"))
@pytest.mark.parametrize(
    ("hidden", "batch", "direction", "layout"),
    [(LANES + 1, 1, "bidirectional", 0), (3 * LANES + 5, 2, "reverse", 1), (2 * LANES, 5, "bidirectional", 0)],
)
def test_workers_share_steps(form, hidden, batch, direction, layout, far, monkeypatch):
    """Weights that no worker's cache holds, or more workers than directions: a call for each step, the same results."""
    node, arrays = sized(form, hidden, batch, direction, False, layout)
    states = [(batch, 1 + (direction == "bidirectional"), hidden)] * (2 if form == "LSTM" else 1)
    states = [shape if layout else shape[1::-1] + shape[2:] for shape in states]
    rng = np.random.default_rng(0)
    arrays += [None, *(rng.normal(size=shape).astype(np.float32) for shape in states)]
    names = ["" if array is None else f"x{at}" for at, array in enumerate(arrays)]
    node = replace(node, inputs=tuple(names))
    (offer,) = lowered.offers(node, arrays, CONSTANT)
    alone = lowered.run_offer(node, arrays, offer, CONSTANT, 1)
    here, call, calls = recurrent.machine(), recurrent._layer_step, []
    monkeypatch.setattr(recurrent, "_SHARED_BYTES", 1)
    monkeypatch.setattr(recurrent, "machine", lambda: replace(here, l2=0 if far else 1 << 30))
    monkeypatch.setattr(recurrent, "_layer_step", lambda *args: calls.append(args) or call(*args))
    shared = lowered.run_offer(node, arrays, offer, CONSTANT, 24)
    assert len(calls) == 5 * (arrays[2].shape[0] if far else 1) + 1
    assert all(map(np.array_equal, alone, shared))


def test_lengths_of_whole_sequences_are_none():
    """Lengths that are known to be those of all steps do not keep sequences apart."""
    node, arrays = sized("LSTM", LANES, 4, "bidirectional", True, 0)
    arrays[4] = np.full(4, 5, np.int32)
    (offer,) = lowered.offers(node, arrays, (*CONSTANT, 4, 7))
    assert offer.inputs[4] == ""
    assert lowered.check(node, arrays, (*CONSTANT, 4, 7), made=[offer]) == 1


def test_weights_of_the_run_are_left_to_the_reference():
    node, arrays = sized("GRU", LANES, 1, "forward", False, 0)
    assert not lowered.offers(node, arrays)


@pytest.mark.parametrize("wanted", [("y",), ("", "h"), ("", "", "c"), ("y", "", "c")])
def test_outputs_that_nobody_reads(wanted):
    case_node, arrays = sized("LSTM", LANES + 1, 2, "bidirectional", False, 0)
    names = ("x", "w", "r", "b")
    node = helper.make_node("LSTM", names, wanted, direction="bidirectional", hidden_size=LANES + 1)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, arrays[0].shape)]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted if name]
    known = [numpy_helper.from_array(array, name) for array, name in zip(arrays[1:], names[1:], strict=True)]
    graph = helper.make_graph([node], "layer", inputs, outputs, known)
    model = cpuconv.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    given = dict(zip(("y", "h", "c"), run(case_node, arrays, [np.dtype(np.float32)] * 3), strict=True))
    for name, array in model.run({"x": arrays[0]}).items():
        close(array, given[name])
