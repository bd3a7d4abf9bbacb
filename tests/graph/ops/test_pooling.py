"""Poolings, folds of planes and instance normalisation by kernels, against their references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import layouts
from bench.mca import assembly
from cpuconv.errors import SourceError
from cpuconv.graph import ops
from cpuconv.graph.ir import Node
from cpuconv.graph.lowering import Call, Offer
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import MicroRef, Ref, Space
from cpuconv.kernels.binding.tensor_view import BLOCKED, DENSE, TensorView
from cpuconv.kernels.windows.pooling import OUTPUTS, Pooling, pool_step, strip_tiles
from cpuconv.memory.aligned import aligned
from cpuconv.network.running.recording import Recording
from cpuconv.problem.arrays import address
from cpuconv.problem.pooling import window_of
from support.graph import lowered

LANES = current().lanes
CHANNELS = st.sampled_from((1, LANES - 1, LANES, LANES + 1))
BATCH, THREADS = st.sampled_from((1, 3)), st.sampled_from((1, 2))
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")


def node(op: str, inputs: int = 1, **attributes: object) -> Node:
    return ops.TABLE[op].node([f"x{at}" for at in range(inputs)], ["y"], **attributes)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def blocked_offers(made: Node, arrays: list[np.ndarray], threads: int = 1) -> list[Offer]:
    """The offers of kernels over channel blocks, where all inputs but the first are known beforehand."""
    known = range(1, len(arrays))
    return [offer for offer in lowered.offers(made, arrays, known, threads) if offer.outputs == (BLOCKED,)]


def check(made: Node, arrays: list[np.ndarray], threads: int = 1, apart: bool = False, tolerance: float = 1e-5) -> int:
    """Compare the offers of kernels over channel blocks with the reference; gives their number."""
    known, chosen = range(1, len(arrays)), blocked_offers(made, arrays, threads)
    return lowered.check(made, arrays, known, threads, apart, tolerance, chosen)


def window_fits(made: Node, x: np.ndarray) -> bool:
    """Whether there are outputs, and each of a mean sees an input or padding that counts."""
    try:
        (y,) = ops.TABLE[made.op].evaluate(made, [x], [x.dtype])
    except SourceError:
        return False
    return y.size > 0 and not np.isnan(y).any()


@st.composite
def windows(draw, sizes, kernels):
    """A pooling of one or two axes and its input; windows may hang over, or lie in the padding altogether."""
    rank = draw(st.integers(1, 2))
    kernel = [draw(kernels) for _ in range(rank)]
    attributes = {
        "kernel_shape": kernel,
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
        "dilations": [draw(st.sampled_from((1, 1, 2, 3))) for _ in range(rank)],
        "auto_pad": draw(st.sampled_from(("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))),
        "ceil_mode": draw(st.integers(0, 1)),
        "pads": [draw(st.integers(0, size)) for size in (*kernel, *kernel)],
    }
    op = draw(st.sampled_from(("MaxPool", "AveragePool")))
    if op == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    x = normal(draw(BATCH), draw(CHANNELS), *(draw(sizes) for _ in range(rank)))
    return node(op, **attributes), x


@settings(max_examples=60, deadline=None)
@given(windows(st.integers(1, 20), st.integers(1, 5)), THREADS, st.booleans())
def test_pooling_is_the_reference(case, threads, apart):
    made, x = case
    assume(window_fits(made, x))
    assert check(made, [x], threads=threads, apart=apart) == 1


@settings(max_examples=60, deadline=None)
@given(st.data(), THREADS, st.booleans())
def test_dense_planes_are_pooled(data, threads, apart):
    op, draw = data.draw(st.sampled_from(("MaxPool", "AveragePool"))), data.draw
    kernel, stride, dilation = draw(st.sampled_from(((2, 2, 1), (3, 2, 1), (5, 1, 1), (3, 1, 2), (2, 3, 1))))
    shape = (2, 3, *(draw(st.sampled_from(each)) for each in ((1, 2, 7), (1, 3, 7, 13, 20, 31, 35, 70, 112))))
    attributes = {
        "kernel_shape": [kernel] * 2,
        "strides": [draw(st.integers(1, 2)), stride],
        "dilations": [dilation] * 2,
    }
    attributes["pads"] = [draw(st.integers(0, kernel - 1)) for _ in range(4)]
    made, x = node(op, ceil_mode=draw(st.integers(0, 1)), **attributes), normal(*shape)
    assume(window_fits(made, x))
    x[0, 1, -1, shape[-1] // 2] = draw(st.sampled_from((0, np.nan, np.inf)))
    if op == "MaxPool" and draw(st.booleans()):
        x = np.nan_to_num(x * 50, posinf=127).astype(draw(st.sampled_from((np.int8, np.uint8))))
    offers = [offer for offer in lowered.offers(made, [x]) if offer.outputs == (DENSE,)]
    inside = window_of(made.attributes, x.shape).counts().all()  # whether each window has an input
    assert lowered.check(made, [x], threads=threads, apart=apart, made=offers) == inside


@pytest.mark.parametrize("width", range(1, 70, 4))
def test_rows_of_any_width_are_cut_into_strips(width):
    made = node("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    assert check(made, [normal(1, LANES + 1, 5, width)]) == 1


@settings(max_examples=15, deadline=None)
@given(windows(st.integers(30, 50), st.sampled_from((1, 13, 33, 40))), THREADS)
def test_wide_windows_are_pooled(case, threads):
    made, x = case
    assume(window_fits(made, x))
    assert check(made, [x], threads=threads) == 1


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("width", [1, 3, 20, 60])  # one strip; windows that hang over at both ends; strips between
def test_borders_may_be_wider_than_strips(op, width):
    made = node(op, kernel_shape=[2, 17], pads=[0, 16, 0, 16])
    assert check(made, [normal(1, LANES, 3, width)]) == 1


def test_a_wide_window_in_the_padding_has_the_maximum_zero():
    made = node("MaxPool", kernel_shape=[1, 33], pads=[0, 34, 1, 33])
    assert check(made, [normal(1, LANES, 3, 40) - 10]) == 1


@pytest.mark.parametrize("kernel, stride, dilation", [(2, 2, 1), (3, 2, 1), (3, 1, 1), (5, 1, 1), (3, 1, 3), (5, 3, 2)])
def test_planes_of_any_width_ask_for_few_strips(kernel, stride, dilation):
    asked, near = set(), (kernel - 1) * dilation // 2
    for width in range(1, 200):
        out = (width + 2 * near - (kernel - 1) * dilation - 1) // stride + 1
        if out < 1:
            continue
        x, y = (TensorView.blocked(Ref(name), (1, LANES, 9, size), LANES) for name, size in (("x", width), ("y", out)))
        pooling = Pooling("max", (kernel, kernel), (stride, stride), (dilation, dilation), (near, near))
        step = pool_step(current(), x, y, pooling, 1)
        if step is None:  # a window of columns apart, none of them inside
            assert dilation > 1 and width < kernel * dilation
            continue
        asked |= {value.tile for value in step.args.values() if isinstance(value, MicroRef)}
    assert asked <= set(strip_tiles(next(iter(asked)), current()))
    assert len(asked) <= 2 * len(OUTPUTS)


def test_a_window_in_the_padding_has_the_maximum_zero():
    made = node("MaxPool", kernel_shape=[2, 2], pads=[3, 3, 3, 3])
    x = normal(1, LANES, 2, 2) - 10
    (offer,) = blocked_offers(made, [x])
    (y,) = lowered.run_offer(made, [x], offer)
    assert y.shape[2:] == (7, 7)
    assert (y[:, :, 0] == 0).all() and (y[:, :, :, -1] == 0).all() and (y[:, :, 2:5, 2:5] < 0).all()


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_arrives_from_wherever_it_lies(op, value):
    attributes = {} if op.startswith("Global") else {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}
    x = normal(1, 81, 9, 9)
    x[0, np.arange(81), np.arange(81) // 9, np.arange(81) % 9] = value  # another pixel of each channel
    assert check(node(op, **attributes), [x]) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(3, LANES - 1, 7), (1, LANES + 1, 7, 9), (2, LANES, 23, 24)])
@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
def test_a_plane_is_pooled(op, shape, threads):
    assert lowered.check(node(op), [normal(*shape)], threads=threads, apart=True) == 2  # dense ones too


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3, LANES - 1, 7), (1, LANES + 1, 7, 9), (2, LANES, 23, 24)])
def test_a_plane_is_reduced(op, shape):
    axes = np.arange(2, len(shape)) - len(shape) * (len(shape) % 2)
    assert check(node(op, 2), [normal(*shape), axes], apart=True) == 1


@pytest.mark.parametrize(
    "op, attributes, axes",
    [("ReduceMean", {"keepdims": 0}, [2, 3]), ("ReduceMean", {}, [1, 2, 3]), ("ReduceL2", {}, [2, 3])],
)
def test_other_reductions_have_no_blocked_offer(op, attributes, axes):
    assert blocked_offers(node(op, 2, **attributes), [normal(1, LANES, 4, 4), np.array(axes)]) == []


def test_a_mean_of_many_has_a_small_error():
    x = normal(1, LANES, 200, 300) + 100
    assert check(node("GlobalAveragePool"), [x], tolerance=5e-7) == 1


@pytest.mark.parametrize(
    "made, x",
    [
        (ops.TABLE["MaxPool"].node(["x"], ["y", "places"], kernel_shape=[2, 2]), normal(1, LANES, 4, 4)),
        (node("MaxPool", kernel_shape=[2, 2]), np.ones((1, LANES, 4, 4), np.int32)),
        (node("MaxPool", kernel_shape=[2, 2, 2]), normal(1, LANES, 4, 4, 4)),
        (node("AveragePool", kernel_shape=[2, 2], pads=[2, 2, 2, 2]), normal(1, LANES, 4, 4)),
    ],
    ids=["places", "integers", "three axes", "means of nothing"],
)
def test_what_kernels_do_not_pool(made, x):
    assert blocked_offers(made, [x]) == []


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_workers_change_no_bit(op):
    made, x = node(op, kernel_shape=[3, 5], strides=[1, 2], pads=[1, 2, 1, 2]), normal(1, 3 * LANES, 37, 61)
    one, two = (
        lowered.run_offer(made, [x], blocked_offers(made, [x], threads)[0], threads=threads)[0] for threads in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


@pytest.mark.skipif(current().name in ("sse", "generic"), reason="a comparison takes registers of its own")
@pytest.mark.parametrize("fold", ["max", "sum"])
@pytest.mark.parametrize("kernel, stride, width", [(2, 2, 56), (3, 2, 56), (3, 1, 28), (3, 1, 7), (5, 1, 20)])
def test_the_columns_of_a_strip_stay_in_registers(fold, kernel, stride, width):
    x, y = (
        TensorView.blocked(Ref(name), (1, LANES, 9, size), LANES)
        for name, size in (("x", width * stride), ("y", width))
    )
    pooling = Pooling(fold, (kernel, kernel), (stride, stride), (1, 1), (kernel // 2, kernel // 2))
    step = pool_step(current(), x, y, pooling, 1)
    strips = [value for value in step.args.values() if isinstance(value, MicroRef)]
    assert strips
    for strip in strips:
        if strip.tile.edged and current().registers <= 16:  # two strips a row: what tells columns apart takes registers
            continue
        loops = assembly.loops(strip.kernel.assembly(strip.tile))
        assert loops and not any(assembly.vector_spills(loop) for loop in loops)


# --- instance normalisation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(3, LANES - 1, 7), (1, LANES + 1, 7, 9), (2, 2 * LANES, 23, 24)])
def test_an_instance_is_normalised(shape, threads):
    vectors = [normal(shape[1]), normal(shape[1]) + 1]
    made = node("InstanceNormalization", 3, epsilon=1e-3)
    assert check(made, [normal(*shape), *vectors], threads=threads, apart=True) == 1
    assert all(offer.outputs != (BLOCKED,) for offer in lowered.offers(made, [normal(*shape), *vectors]))


def test_a_variance_much_smaller_than_the_mean_is_right():
    x = normal(1, LANES, 20, 30) + 1000
    vectors = [np.ones(LANES, np.float32), np.zeros(LANES, np.float32)]
    assert check(node("InstanceNormalization", 3), [x, *vectors], tolerance=1e-3) == 1


@pytest.mark.parametrize("way", [BLOCKED, DENSE])
def test_an_instance_is_normalised_in_place(way):
    op, made = ops.TABLE["InstanceNormalization"], node("InstanceNormalization", 3)
    x, vectors = normal(1, 2 * LANES, 5, 7), [normal(2 * LANES), normal(2 * LANES) + 1]
    (expected,) = op.evaluate(made, [x, *vectors], [np.float64])
    blocked, offers = blocked_offers(made, [x, *vectors]), lowered.offers(made, [x, *vectors], [1, 2])
    layout = layouts.get("NCHW") if way == DENSE else layouts.blocked(LANES)
    place = (
        TensorView.plain(Ref("memory"), x.shape) if way == DENSE else TensorView.blocked(Ref("memory"), x.shape, LANES)
    )
    offer = next(offer for offer in offers if (offer in blocked) == (way == BLOCKED))
    memory = aligned(place.physical)
    memory[...] = layouts.from_nchw(x, layout)
    kept = lowered.Kept()
    known = [TensorView.plain(kept.keep(vector), vector.shape, vector.dtype, vector) for vector in vectors]
    call = Call(made, [place, *known], [place], offer, lowered.target(), Space(), kept)
    bases = {name: address(array) for name, array in (kept.arrays | {"memory": memory}).items()}
    Recording.of(op.lower(call), 1).bind(bases).run()
    assert op.in_place
    np.testing.assert_allclose(layouts.to_nchw(memory, layout, 2 * LANES), expected, atol=1e-5)
