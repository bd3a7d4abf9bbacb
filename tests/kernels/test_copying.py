"""The kernel of copies: arrays of any axes and strides, and slices by a table, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Ref, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies import copying
from cpuconv.kernels.copies.copying import UNZIP, ZIP
from cpuconv.kernels.copies.movement import tensor_movements
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.copies.tensor_views import permuted
from cpuconv.kernels.copies.transpose_groups import transpose_groups
from cpuconv.network.running.recording import Recording
from cpuconv.problem.arrays import address
from support.graph.lowered import target

LANES = current().lanes
quick = settings(max_examples=60, deadline=None)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Elements 1, 2, ... of float32."""
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def copy_step(*arguments) -> Step:
    """The move of a tensor by planes, whatever it costs."""
    *_, movement = tensor_movements(*arguments)
    return copying.bind(movement, copying.supports(movement), Space())


def copied(x: np.ndarray, y: np.ndarray, threads: int = 1, table: np.ndarray | None = None) -> None:
    """y[...] = x, arrays of any strides."""
    places = [TensorView(Ref(name), array.shape, array.strides, 1, array.dtype) for name, array in (("x", x), ("y", y))]
    step = copy_step(target(threads), *places, table)
    Recording.of([step], threads).bind({"x": address(x), "y": address(y)}).run()


@st.composite
def strided(draw):
    """An array of some axes, sliced, flipped, repeated, in another order; and room for its copy, likewise."""
    sizes = st.sampled_from((1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33))
    shape = draw(st.lists(sizes, min_size=1, max_size=5).filter(lambda shape: np.prod(shape) < 40000).map(tuple))
    dtype = draw(st.sampled_from((np.float32, np.float32, np.float64, np.int32, np.int64, np.int8, np.float16, bool)))
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 1, 2, -1, -2))) for _ in shape]
    memory = np.arange(np.prod([2 * size for size in shape]))
    memory = memory.astype(dtype).reshape([2 * shape[axis] for axis in order]).transpose(np.argsort(order))
    x = memory[
        tuple(slice(0 if step > 0 else size * -step - 1, None, step) for size, step in zip(shape, steps, strict=True))
    ]
    x = x[tuple(map(slice, shape))]
    still = draw(st.sampled_from((None, *range(len(shape)))))
    if still is not None and draw(st.booleans()):
        x = np.broadcast_to(np.take(x, [0], still), shape)
    gaps = [size + draw(st.integers(0, 1)) for size in shape]
    y = np.full(gaps, 77).astype(dtype)
    return x, y, tuple(map(slice, shape))


@quick
@given(strided(), st.integers(1, 2))
def test_copies_are_numpys(arrays, threads):
    x, y, part = arrays
    expected = y.copy()
    expected[part] = x
    copied(x, y[part], threads)
    np.testing.assert_array_equal(y, expected)  # nothing written outside


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((1, 56, 56, 80), (0, 3, 1, 2)),
        ((2, 80, 60, 56), (0, 2, 3, 1)),
        ((3, 2, 29, 14, 14), (0, 2, 1, 3, 4)),
        ((1, 8, 7, 8, 7, 24), (0, 1, 3, 2, 4, 5)),
        ((2, 9, 2, 2, 30, 28), (0, 1, 4, 2, 5, 3)),
        ((2, 9, 30, 2, 28, 2), (0, 1, 3, 5, 2, 4)),
        ((2, 400, 3), (0, 2, 1)),
        ((2, 3, 401), (0, 2, 1)),
        ((2, 2, 7), (0, 2, 1)),
        ((5, 9, 2), (0, 2, 1)),
        ((9000, 3), (1, 0)),
        ((2, 9000), (1, 0)),
        ((9001, 4), (1, 0)),
        ((3, 4, 2801), (0, 2, 1)),
        ((300, 197), (1, 0)),
        ((3, 65, 14, 2, 18, 2), (0, 1, 3, 5, 2, 4)),
        ((3, 65, 2, 2, 14, 18), (0, 1, 4, 2, 5, 3)),
        ((40000,), (0,)),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_orders_of_axes_as_networks_have_them(shape, order, threads):
    x = numbered(shape).transpose(order)
    y = np.full(x.size + 8, 77, np.float32)
    copied(x, y[4:-4].reshape(x.shape), threads)
    np.testing.assert_array_equal(y[4:-4].reshape(x.shape), x)
    assert (y[:4] == 77).all() and (y[-4:] == 77).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, bool, np.float32])
@pytest.mark.parametrize(("shape", "order"), [((2, 20, 33), (0, 2, 1)), ((3, 40, 5, 7), (0, 2, 3, 1))])
@pytest.mark.parametrize("gaps", [0, 1])
def test_narrow_elements_are_transposed_in_registers(shape, order, dtype, gaps):
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype).transpose(order)
    y = np.full([size + gaps for size in x.shape], 7).astype(dtype)
    part = tuple(map(slice, x.shape))
    expected = y.copy()
    expected[part] = x
    places = [TensorView(Ref(name), a.shape, a.strides, 1, a.dtype) for name, a in (("x", x), ("y", y[part]))]
    (step,) = move_tensor(target(), space := Space(), *places)
    assert (step.kernel is transpose_groups) == (x.itemsize < 4)
    workspace = np.empty(space.size + 64, np.uint8)
    at = {"x": address(x), "y": address(y), "workspace": address(workspace)}
    Recording.of([step], 1).bind(at).run()
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
@pytest.mark.parametrize(("lines", "size"), [(2, 64), (3, 75), (4, 131)])
def test_a_few_lines_are_interleaved_by_vectors(dtype, lines, size):
    x = np.arange(5 * lines * size).astype(dtype).reshape(5, lines, size)
    for array, mode in ((x, ZIP), (x.swapaxes(1, 2).copy(), UNZIP)):
        y = np.full((5, array.shape[2] + 1, array.shape[1]), 77, dtype)
        copied(array.swapaxes(1, 2), y[:, :-1])
        np.testing.assert_array_equal(y[:, :-1], array.swapaxes(1, 2))
        assert (y[:, -1] == 77).all()
        source, to = (TensorView.plain(Ref(name), shape, np.dtype(dtype)) for name, shape in (
            ("x", array.shape), ("y", (5, *array.shape[:0:-1]))))  # fmt: skip
        step = copy_step(target(), permuted(source, (0, 2, 1)), to)
        assert step.tile.mode == mode and step.tile.element == x.itemsize


@pytest.mark.parametrize("lines", [2, 3, 4])
def test_lines_are_told_apart_in_one_pass(lines):
    x = TensorView.plain(Ref("x"), (9000, lines), np.dtype(np.float32))
    y = TensorView.plain(Ref("y"), (lines, 9000), np.dtype(np.float32))
    step = copy_step(target(), permuted(x, (1, 0)), y)
    assert (step.tile.mode, step.args["row_parts"]) == (UNZIP, 1)
    assert step.args["column_parts"] > 1
    assert step.args["column_step"] % LANES == 0


@quick
@given(st.lists(st.integers(0, 8), min_size=1, max_size=20), st.integers(1, 3), st.sampled_from((1, 3, 17)))
def test_copies_by_a_table(indices, before, behind):
    x = numbered((before, 9, behind))
    y = np.zeros((before, len(indices), behind), np.float32)
    copied(x[:, : len(indices)].swapaxes(0, 1) if len(indices) <= 9 else np.broadcast_to(
        x[:, :1].swapaxes(0, 1), (len(indices), before, behind)), y.swapaxes(0, 1),
        table=np.array(indices) * x.strides[1])  # fmt: skip
    np.testing.assert_array_equal(y, np.take(x, indices, 1))
