"""Work along lines of plain memory: softmax, normalisations and reductions through their kernels."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.graph import ops
from cpuconv.graph.lowering import Call
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Ref, Space
from cpuconv.kernels.binding.tensor_view import DENSE, TensorView
from cpuconv.network.running.recording import Recording
from cpuconv.problem.arrays import address
from support.graph import lowered
from support.graph.lowered import check, offers, run_offer

LANES = current().lanes
SIZES = (1, 2, LANES - 1, LANES, LANES + 1, 4 * LANES, 4 * LANES + 1, 9 * LANES - 1)
THREADS = pytest.mark.parametrize("threads", (1, 2))
REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum")


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def run(op: str, arrays, threads: int = 1, apart: bool = False, constant=(), outputs: int = 1, **attributes) -> None:
    names = [f"x{at}" for at in range(len(arrays))]
    node = ops.TABLE[op].node(names, [f"y{at}" for at in range(outputs)], **attributes)
    assert any(offer.outputs == (DENSE,) for offer in offers(node, arrays, constant, threads))
    assert check(node, arrays, constant, threads, apart) >= 1


@THREADS
@pytest.mark.parametrize("op", ("Softmax", "LogSoftmax"))
@pytest.mark.parametrize("size", SIZES)
def test_softmax_of_any_axis(op, size, threads):
    for axis, shape in ((2, (2, 3, size)), (1, (3, size, 5)), (1, (2, 7, size)), (0, (size, 3)), (0, (size,))):
        for apart in (False, True):
            run(op, [numbers(*shape)], threads, apart, axis=axis)


@pytest.mark.parametrize("op", ("Softmax", "LogSoftmax"))
@pytest.mark.parametrize("axis", (0, 1))
def test_softmax_of_extreme_values(op, axis):
    x = numbers(19, 19) * 100 + 1e4
    x[0, :] = x[:, 0] = -np.inf  # a line of nothing else, and others with one
    x[5, 5] = np.nan
    x[7, 7] = np.inf
    x[9, 9] = 3e38
    x[11, 11] = -3e38
    run(op, [x], axis=axis)


def test_softmax_is_zero_where_the_input_is_minus_infinity():
    x = numbers(3, 40)
    x[:, 20:] = -np.inf
    run("Softmax", [x])
    node = ops.TABLE["Softmax"].node(["x"], ["y"])
    (y,) = run_offer(node, [x], offers(node, [x])[0])
    assert not y[:, 20:].any() and (y[:, :20] > 0).all()


@pytest.mark.parametrize("op, axis", [("Softmax", 1), ("Softmax", 2), ("LogSoftmax", 1), ("LayerNormalization", 2)])
def test_the_output_may_take_the_memory_of_the_input(op, axis):
    x = numbers(3, 2 * LANES + 1, 9 * LANES - 1)
    vectors = [numbers(x.shape[2]), numbers(x.shape[2])] if op == "LayerNormalization" else []
    table, node = ops.TABLE[op], ops.TABLE[op].node(["x", "scale", "bias"][: 1 + len(vectors)], ["y"], axis=axis)
    (expected,) = table.evaluate(node, [x, *vectors], [np.dtype(np.float64)])
    (offer,) = offers(node, [x, *vectors])
    memory = {"x": x.copy(), **dict(zip(("scale", "bias"), vectors, strict=False))}
    places = [TensorView.plain(Ref(name), array.shape) for name, array in memory.items()]
    assert table.in_place and table.lower is not None
    steps = table.lower(Call(node, places, places[:1], offer, lowered.target(), Space(), lowered.Kept()))
    Recording.of(steps, 1).bind({name: address(array) for name, array in memory.items()}).run()
    np.testing.assert_allclose(memory["x"], expected, atol=1e-5 * np.abs(expected).max())


@THREADS
@pytest.mark.parametrize("size", SIZES)
def test_layer_normalization_over_last_axes(size, threads):
    for axis, shape in ((-1, (5, size)), (1, (3, 2, size)), (0, (size,)), (0, (3, size))):
        x = numbers(*shape) * 3 + 10
        parameters = [numbers(*shape[axis:]), numbers(*shape[axis:]) + 1]
        for count in (1, 2):
            for apart in (False, True):
                run("LayerNormalization", [x, *parameters[:count]], threads, apart, axis=axis, epsilon=1e-3)


def test_layer_normalization_is_not_offered_for_what_kernels_do_not_give():
    table = ops.TABLE["LayerNormalization"]
    x = numbers(3, 8)
    assert not offers(table.node(["x", "scale"], ["y", "mean"]), [x, numbers(8)])
    assert not offers(table.node(["x", "scale"], ["y"]), [x, numbers(1)])


@THREADS
def test_instance_normalization(threads):
    node = ops.TABLE["InstanceNormalization"].node(["x", "scale", "bias"], ["y"])
    for shape in ((1, 3, LANES), (3, LANES + 1, 5, 7), (2, 3, 33, 35)):
        vectors = [numbers(shape[1]), numbers(shape[1]) + 1]
        for apart in (False, True):
            assert check(node, [numbers(*shape) + 3, *vectors], (), threads, apart) == 1


@THREADS
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_neighbouring_axes(name, threads):
    shape = (3, 5, 4 * LANES + 1, 7)
    for axes in ((0,), (1,), (2,), (3,), (-1, 2), (1, 2), (0, 1), (1, 2, 3), (0, 1, 2, 3)):
        x = numbers(*shape)
        if name == "Prod":
            x = np.exp(x / 100)
        if name == "LogSum":
            x = np.abs(x)
        for keep in (0, 1):
            for apart in (False, True):
                run(f"Reduce{name}", [x, np.array(axes)], threads, apart, (1,), keepdims=keep)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ("Mean", "Max"))
def test_reductions_of_any_size(name, size):
    for axis, shape in ((1, (3, size)), (0, (3, size)), (0, (size,))):
        run(f"Reduce{name}", [numbers(*shape), np.array([axis])], constant=(1,))


@THREADS
@pytest.mark.parametrize("name", ("Sum", "Max", "L2"))
def test_reductions_of_many_short_lines(name, threads):
    """Several lines at once give the bits of single lines, which few lines are."""
    x = numbers(2, 2 * LANES + 3, 2 * LANES + 5)
    x[1, 3, 7] = np.nan
    last = np.array([-1])
    for apart in (False, True):
        for lines in (x, x.reshape(-1, x.shape[2])):
            run(f"Reduce{name}", [lines, last], threads, apart, (1,), keepdims=0)
    node = ops.TABLE[f"Reduce{name}"].node(["x", "axes"], ["y"], keepdims=0)
    made = ([each, last] for each in (x, x[:, :3].copy()))
    whole, few = (run_offer(node, each, offers(node, each, (1,))[0], (1,))[0] for each in made)
    assert np.array_equal(whole[:, :3], few, equal_nan=True)


def test_axes_of_one_element_lie_anywhere():
    run("ReduceSum", [numbers(1, 5, 1, 7), np.array([0, 1, 3])], constant=(1,))
    run("ReduceSum", [numbers(1, 5, 1, 7), np.array([2])], constant=(1,))


def test_extremes_keep_nan():
    for at in (0, LANES, 5 * LANES + 2):
        x = numbers(6 * LANES, 3)
        x[at, 1] = np.nan
        for name in ("ReduceMax", "ReduceMin"):
            run(name, [x, np.array([0])], constant=(1,))
            run(name, [np.ascontiguousarray(x.T), np.array([1])], constant=(1,))


def test_axes_apart_from_each_other_and_other_types_are_not_offered():
    node = ops.TABLE["ReduceSum"].node(["x", "axes"], ["y"])
    assert not offers(node, [numbers(2, 3, 4), np.array([0, 2])], (1,))
    assert not offers(node, [np.ones((2, 3), np.int32), np.array([0])], (1,))
    assert not offers(ops.TABLE["Softmax"].node(["x"], ["y"]), [np.ones((2, 3))])


@THREADS
@pytest.mark.parametrize("channels", (1, 3, LANES - 1, LANES, LANES + 1, 3 * LANES))
def test_lrn_in_planes_and_blocks(channels, threads):
    shapes = (1, channels, 1, 1), (3, channels, 5, 7), (1, channels, 30, 31), (2, channels, 9)
    for shape, size in zip(shapes, (5, 3, 5, 4), strict=True):
        node = ops.TABLE["LRN"].node(["x"], ["y"], size=size, alpha=0.5, bias=1.5)
        for apart in (False, True):
            assert check(node, [numbers(*shape)], (), threads, apart) == 2


@pytest.mark.parametrize("beta", (0.5, 0.75, 1.0, 0.3))
def test_lrn_of_any_power(beta):
    x = numbers(2, LANES + 3, 6, 6) * 10
    for size in (1, 2, LANES, 2 * LANES + 1, 2 * LANES + 2):
        node = ops.TABLE["LRN"].node(["x"], ["y"], size=size, alpha=0.1, beta=beta, bias=2.0)
        assert check(node, [x]) == (2 if size <= 2 * LANES + 1 else 1)


def test_lrn_without_a_positive_bias_is_not_offered():
    assert not offers(ops.TABLE["LRN"].node(["x"], ["y"], size=5, bias=0.0), [numbers(1, 8, 3, 3)])


def test_lrn_of_squares_beyond_float32():
    x = numbers(1, 3, 4, 4) * np.float32(1e25)
    node = ops.TABLE["LRN"].node(["x"], ["y"], size=3, alpha=1.0)
    for offer in offers(node, [x]):
        (y,) = run_offer(node, [x], offer)
        assert np.abs(y).max() < 1  # 1e25 over 1e50 to the power of 3/4 is 3e-13, and finite
