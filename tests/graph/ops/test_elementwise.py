"""Expressions and their kernels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.functions.table import COMPARISONS, FUNCTIONS, made_of  # noqa: E402
from cpuconv.graph import ops  # noqa: E402
from cpuconv.graph.ops.elementwise_forms import FORMS  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.kernels.binding.steps import Ref  # noqa: E402
from cpuconv.kernels.binding.tensor_view import BLOCKED, CHANNELS_LAST, DENSE, TensorView  # noqa: E402
from cpuconv.kernels.elementwise.driver import MAX_OPERANDS, elementwise_steps  # noqa: E402
from cpuconv.kernels.elementwise.expression import Constant, Expression, Operand, apply, vanishes  # noqa: E402
from cpuconv.kernels.elementwise.functions import EMITTERS  # noqa: E402
from cpuconv.kernels.elementwise.loop_nests import (
    crossed,  # noqa: E402
    loop_nests,  # noqa: E402
)
from cpuconv.network.running.recording import Recording  # noqa: E402
from cpuconv.problem.arrays import address  # noqa: E402
from cpuconv.problem.problem import ConvProblem  # noqa: E402
from support import oracle  # noqa: E402
from support.graph import draws, lowered  # noqa: E402
from support.graph.expressions import SECOND  # noqa: E402
from support.graph.lowered import small_work_is_shared  # noqa: E402, F401

LANES = current().lanes
X, Z = Operand(0), Operand(1)
COMPARED = [each.__name__ for each in COMPARISONS]
BINARY = (*COMPARED, "add", "sub", "mul", "div", "quotient", "max", "min", "prelu", "leaky_relu", "above", "pow")
UNARY = [name for name in EMITTERS if name not in (*BINARY, "choose")]
LOGIC = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where"}


def computed(tree: Expression, out: np.ndarray, *operands: np.ndarray, threads: int = 1) -> np.ndarray:
    """`out`, filled with the expression of plain operands by the kernel."""
    places = [TensorView(Ref(f"x{at}"), x.shape, x.strides) for at, x in enumerate(operands)]
    steps = elementwise_steps(lowered.target(threads), tree, TensorView(Ref("y"), out.shape, out.strides), places)
    bases = {"y": address(out)} | {f"x{at}": address(x) for at, x in enumerate(operands)}
    Recording.of(steps, threads).bind(bases).run()
    return out


def meant(tree: Expression, *operands: np.ndarray) -> np.ndarray:
    """The expression in float64, rounded at the end."""
    with np.errstate(all="ignore"):
        return np.asarray(tree.evaluate([x.astype(np.float64) for x in operands]), np.float32)


def numbers() -> np.ndarray:
    """Magnitudes over all of float32, dense where functions bend, with infinities, zeros and NaN."""
    limits = np.finfo(np.float32)
    magnitudes = [np.geomspace(limits.tiny, limits.max, 700), np.linspace(0, 20, 1001), np.linspace(80, 120, 161)]
    halves = np.arange(0, 8, 0.5)
    found = np.concatenate([*magnitudes, halves, [1e-40, limits.max, np.inf]])
    return np.concatenate([found, -found, [np.nan]]).astype(np.float32)


def assert_near(got: np.ndarray, expected: np.ndarray, scale: float | np.ndarray) -> None:
    """Equal where not finite, else within some units of float32's precision of the value, and of `scale`."""
    broken = ~np.isfinite(expected)
    np.testing.assert_array_equal(got[broken], expected[broken])
    error = np.abs(got[~broken].astype(np.float64) - expected[~broken])
    allowed = (1e-6 * np.abs(expected) + 3e-7 * scale)[~broken] + 1e-37
    beyond = error > allowed
    assert not beyond.any(), f"{error[beyond].max():.3g} off, as at {expected[~broken][beyond][0]:.6g}"


# --- functions ------------------------------------------------------------------------------------------------------

ABSOLUTE = ("sigmoid", "tanh", "hardsigmoid")  # as precise as 1 is
GATES = ("gelu", "gelu_tanh", "mish", "silu")  # as their input is, where it is not far below zero


@pytest.mark.parametrize("name", UNARY)
def test_function(name):
    x = numbers()
    if name in GATES:
        x = x[~(x < -30) | (np.isneginf(x) & (name != "silu"))]
    got, expected = computed(apply(name, X), np.empty_like(x), x), meant(apply(name, X), x)
    scale = 1 if name in ABSOLUTE else np.minimum(np.abs(x), 30) if name in GATES else 0
    assert_near(got, expected, np.nan_to_num(scale) * np.ones_like(x))


@pytest.mark.parametrize("name", GATES)
def test_gates_close_far_below_zero(name):
    x = -np.geomspace(30, 1e30, 65).astype(np.float32)
    got = computed(apply(name, X), np.empty_like(x), x)
    assert np.abs(got).max() <= 1e-5


@pytest.mark.parametrize("name", BINARY[:-1])
def test_function_of_two(name):
    pairs = np.array([*itertools.product([0.0, 1.5, -2.0, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-3], repeat=2)])
    a, b = np.ascontiguousarray(pairs.T.astype(np.float32))
    expected = meant(apply(name, X, Z), a, b)
    assert_near(computed(apply(name, X, Z), np.empty_like(a), a, b), expected, 0)
    for number in (0.0, 1.5, -2.0, np.inf):
        for tree in (apply(name, X, number), apply(name, number, X)):
            assert_near(computed(tree, np.empty_like(a), a), meant(tree, a), 0)


@pytest.mark.parametrize("power", [2, 3, 5, -1, -2, 0.5, -0.5, 0, 1.5, 2.2, -0.7])
def test_powers_that_are_known(power):
    x = np.concatenate([np.geomspace(1e-3, 1e3, 200), [0, np.inf, -np.inf, -0.0, np.nan]]).astype(np.float32)
    if power == int(power):
        x = np.concatenate([x, -x[:-4]])
    node = ops.TABLE["Pow"].node(["x", "p"], ["y"])
    offers = lowered.offers(node, [x, np.float32(power).reshape(1)], (1,))
    assert len(offers) == 1
    for offer in offers:
        (got,) = lowered.run_offer(node, [x, np.float32(power).reshape(1)], offer, (1,))
        with np.errstate(all="ignore"):
            expected = FUNCTIONS["pow"].meaning(x.astype(np.float64), np.float64(np.float32(power))).astype(np.float32)
        np.testing.assert_allclose(got, expected, rtol=3e-6)


def test_a_power_of_an_integer_is_one():
    node = ops.TABLE["Pow"].node(["x", "p"], ["y"])
    arrays = [np.array([2]), np.array([0.5, 3], np.float32)]
    assert lowered.check(node, arrays, (0,)) == 0


def test_powers_that_are_not_known():
    x, y = np.meshgrid(np.array([-3, -0.5, 0, 0.5, 1, 10, np.nan]), np.array([-2.5, -2, -1, 0, 0.5, 1, 3, 4, np.nan]))
    x, y = (np.ascontiguousarray(each.ravel().astype(np.float32)) for each in (x, y))
    got = computed(apply("pow", X, Z), np.empty_like(x), x, y)
    np.testing.assert_allclose(got, meant(apply("pow", X, Z), x, y), rtol=3e-6)


def test_a_new_function_is_one_line(monkeypatch):
    """It is an elementwise operator, and what convolutions end with; the references know it too."""
    gate = made_of(lambda f, x, slope: f("mul", x, f("sigmoid", f("mul", x, slope))), scalars=("slope",))
    monkeypatch.setitem(FUNCTIONS, "sloped_gate", gate)
    x = np.linspace(-9, 9, 3 * 5 * 8, dtype=np.float32).reshape(1, 3, 5, 8)
    expected = (x / (1 + np.exp(-1.75 * x.astype(np.float64)))).astype(np.float32)
    node = ops.TABLE["Elementwise"].node(["x"], ["y"], expression=apply("sloped_gate", X, 1.75))
    assert lowered.check(node, [x]) == 3
    assert_near(computed(node["expression"], np.empty_like(x), x), expected, 1)
    ended = ("sloped_gate", 1.75)
    assert_near(cpuconv.conv2d(x, np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1), activation=ended), expected, 1)
    problem = ConvProblem(2, 5, 3, 4, 19, 3, 3, pads=(1, 1, 1, 1), residual=True, activation=ended)
    assert ConvProblem.parse(problem.key) == problem
    oracle.check(problem, "im2col")


# --- expressions ----------------------------------------------------------------------------------------------------


def test_texts_tell_expressions_apart():
    a, b = apply("add", X, 0.0), apply("add", X, -0.0)
    assert a != b and len({a, b}) == 2
    assert a == apply("add", Operand(0), Constant(0)) and hash(a) == hash(apply("add", X, 0))
    assert repr(apply("mul", a, apply("exp", Z))) == "mul(add(x0,0.0),exp(x1))"


def test_a_division_by_a_number_is_a_product():
    assert repr(apply("div", X, 4)) == "mul(x0,0.25)"
    assert repr(apply("div", X, 0)) == "div(x0,0.0)"
    assert repr(apply("div", X, 1e-40)) == "div(x0,1e-40)"


@pytest.mark.parametrize(
    ("tree", "zero"),
    [
        (apply("mul", X, apply("sigmoid", X)), True),
        (apply("sigmoid", X), False),
        (apply("min", apply("max", X, 0), 6), True),
        (apply("max", apply("add", X, 1), 0), False),
        (apply("div", X, apply("add", apply("abs", X), 1)), True),
        (apply("div", X, Z), False),
        (apply("sub", apply("softplus", X), math.log(2)), False),  # zero but for rounding
        (apply("mul", X, apply("sub", apply("softplus", X), math.log(2))), False),
        (apply("add", X, Z), True),
    ],
    ids=repr,
)
def test_what_vanishes_where_operands_are_zero(tree, zero):
    assert vanishes(tree) == zero


@pytest.mark.parametrize("name", EMITTERS)
def test_what_vanishes_does_when_it_is_emitted(name):
    arity = {"choose": 3}.get(name, 1 if name in UNARY else 2)
    tree = apply(name, *map(Operand, range(arity)))
    zeros = [np.zeros(LANES, np.float32)] * arity
    assert vanishes(tree) == (not computed(tree, np.ones(LANES, np.float32), *zeros).any())


@given(data=st.data())
@settings(max_examples=60)
def test_trees(data):
    count = data.draw(st.integers(1, 4))
    tree, rng = data.draw(draws.expressions(count)), data.draw(draws.GENERATORS)
    size = data.draw(st.sampled_from((1, LANES - 1, LANES, 4 * LANES + 3, 9 * LANES)))
    operands = [draws.numbers(rng, (size,)) for _ in range(count)]
    operands[0][rng.integers(size)] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32))
    expected = meant(tree, *operands) * np.ones(size, np.float32)
    read = [operands[at] for at in tree.operands]
    packed = tree.substituted({at: Operand(k) for k, at in enumerate(tree.operands)})
    got = computed(packed, np.empty(size, np.float32), *read)
    assert_near(got, expected, np.abs(expected[np.isfinite(expected)]).max(initial=1) + 10)


# --- places ---------------------------------------------------------------------------------------------------------


def guarded(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Memory with a margin of NaN, and a view of its middle."""
    size, margin = math.prod(shape), 2 * LANES
    memory = np.full(size + 2 * margin, np.nan, np.float32)
    return memory, memory[margin : margin + size].reshape(shape)


VIEWS = {
    "contiguous": lambda x: x,
    "backwards": lambda x: x[..., ::-1],
    "all backwards": lambda x: x[::-1, ::-1, ::-1],
    "every other": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "first axis last": lambda x: np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(2, 0, 1),
    "a row": lambda x: np.broadcast_to(x[:1, :1], x.shape),
    "a column": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "a number": lambda x: np.broadcast_to(x[:1, :1, :1], x.shape),
    "lower rank": lambda x: x[0, 0].copy(),
    "sizes of one": lambda x: x[:, :1, :1].copy(),
}


@pytest.mark.parametrize("columns", [1, LANES - 1, LANES, LANES + 1, 5 * LANES])
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, columns):
    rng, shape = np.random.default_rng(0), (2, 3, columns)
    a, b = (VIEWS[name](draws.numbers(rng, shape)) for name in ("contiguous", view))
    tree = apply("add", apply("mul", X, 2), apply("exp", Z))
    for first, second, threads in ((a, b, 1), (b, a, 2)):
        memory, out = guarded(shape)
        expected = meant(tree, first, second)
        assert_near(computed(tree, out, first, second, threads=threads), expected, np.abs(expected).max())
        out[...] = np.nan
        assert np.isnan(memory).all(), "only the output is written"


@pytest.mark.parametrize("size", [1, LANES, 2 * LANES + 3])
def test_output_with_gaps(size):
    memory = np.full(3 * size, 7, np.float32)
    x = np.arange(size, dtype=np.float32)
    computed(apply("add", X, 1), memory[::3], x)
    np.testing.assert_array_equal(memory[::3], x + 1)
    assert (memory.reshape(size, 3)[:, 1:] == 7).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_images_apart(threads):
    """A blocked output that is a part of the channels of a larger tensor: the others are not written."""
    shape, whole = (3, LANES + 1, 2, 2), (3, 4 * LANES, 2, 2)
    x = np.ones((3, 2, 2, 2, LANES), np.float32)
    memory = np.full((3, 4, 2, 2, LANES), 7, np.float32)
    strides = TensorView.blocked(Ref("y"), whole, LANES).strides
    output = TensorView(Ref("y", memory[0, 0].nbytes), shape, strides, LANES)
    steps = elementwise_steps(
        lowered.target(threads), apply("sub", X, 3), output, [TensorView.blocked(Ref("x"), shape, LANES)]
    )
    Recording.of(steps, threads).bind({"x": address(x), "y": address(memory)}).run()
    assert (memory[:, [0, 3]] == 7).all() and (memory[:, 1] == -2).all()
    assert (memory[:, 2, ..., 0] == -2).all() and not memory[:, 2, ..., 1:].any()


def test_in_place():
    x = np.arange(5 * LANES + 3, dtype=np.float32).reshape(1, -1)
    z = np.array([[2]], np.float32)
    expected = meant(apply("mul", X, Z), x, z)
    np.testing.assert_array_equal(computed(apply("mul", X, Z), x, x, z), expected)


def test_axes_are_joined():
    y = TensorView.blocked(Ref("y"), (2, 3 * LANES, 4, 5), LANES)
    scale = TensorView.blocked(Ref("s"), (2, 3 * LANES, 1, 1), LANES)
    mask = TensorView.plain(Ref("m"), (2, 1, 4, 5))
    assert [axis.size for axis in loop_nests(y, [y], LANES)[0].axes] == [2 * 3 * 4 * 5 * LANES]
    assert [axis.size for axis in loop_nests(y, [y, scale], LANES)[0].axes] == [2 * 3, 4 * 5, LANES]
    assert [axis.size for axis in loop_nests(y, [y, mask], LANES)[0].axes] == [2, 3, 4 * 5, LANES]


CHANNELS = (1, LANES - 1, LANES, LANES + 1, 2 * LANES)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("known", [(), (1,)])
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("channels", CHANNELS)
def test_broadcasts(channels, second, known, threads):
    rng = np.random.default_rng(channels)
    x, z = (draws.numbers(rng, shape) for shape in ((2, channels, 3, 5), SECOND[second](channels)))
    tree = apply("add", apply("mul", X, Z), apply("sigmoid", Z))  # lanes without a channel are not zero by themselves
    node = ops.TABLE["Elementwise"].node(["x", "z"], ["y"], expression=tree)
    for apart in (False, True):
        assert lowered.check(node, [x, z], known, threads, apart, 2e-6) == 3
    swapped = ops.TABLE["Sub"].node(["z", "x"], ["y"])
    assert lowered.check(swapped, [z, x], {1 - at for at in known} - {1}, threads, True, 2e-6) == 3


@pytest.mark.parametrize("size", (LANES - 1, LANES, 3 * LANES + 1))
@pytest.mark.parametrize("threads", (1, 2))
def test_operands_that_lie_across_are_transposed(size, threads):
    """The kernels read what is strided with its last two axes changed, also a broadcast one."""
    rng = np.random.default_rng(size)
    shapes = (2, LANES + 3, size), (LANES + 3, size)
    tree, node = apply("sub", X, apply("mul", Z, Z)), ops.TABLE["Elementwise"].node
    for first, second in (shapes, shapes[::-1]):
        arrays = [draws.numbers(rng, first), draws.numbers(rng, second)]
        assert lowered.check(node(["x", "z"], ["y"], expression=tree), arrays, threads=threads) >= 1
    places = [TensorView(Ref("x"), (2, LANES + 3, size), strides) for strides in ((4000, 4, 400), (4000, 400, 4))]
    output = TensorView.plain(Ref("y"), (2, LANES + 3, size))
    assert [crossed(place, output, LANES) for place in places] == [size >= LANES, False]


def test_channels_of_lower_rank_are_blocked_only_where_they_are_known():
    x, z = np.ones((1, 5, 2, 2), np.float32), np.arange(5, dtype=np.float32).reshape(5, 1, 1)
    node = ops.TABLE["Add"].node(["x", "z"], ["y"])
    assert lowered.check(node, [x, z]) == 2
    assert lowered.check(node, [x, z], (1,)) == 3


@pytest.mark.parametrize("op", sorted(FORMS.keys() - LOGIC - {"Elementwise", "QuantizeLinear", "DequantizeLinear"}))
def test_images_are_offered_in_blocks_and_channels_last(op):
    x = np.full((2, LANES + 1, 3, 2), 0.5, np.float32)
    count = 2 if op in ("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Min", "Max", "Sum", "Mean") else 1
    node = ops.TABLE[op].node([f"x{at}" for at in range(count)], ["y"])
    made_offers = lowered.offers(node, [x] * count)
    assert [offer.outputs for offer in made_offers] == [(DENSE,), (CHANNELS_LAST,), (BLOCKED,)]
    assert made_offers[1].inputs == (CHANNELS_LAST,) * count and made_offers[2].inputs == (BLOCKED,) * count
    assert not lowered.offers(node, [x.astype(np.float64)] * count)


@pytest.mark.parametrize("threads", [1, 2])
def test_comparisons_and_choices(threads):
    """Exact, also next to NaN; conditions broadcast, and a choice may be a number."""
    rng = np.random.default_rng(threads)
    x = rng.choice(np.array([-1, 0, -0.0, 0.5, np.inf, -np.inf, np.nan], np.float32), (2, 3, LANES + 5, 3))
    for op in sorted(LOGIC - {"Where"}):
        node = ops.TABLE[op].node(["a", "b"], ["y"])
        for other in (x[:1, ::-1, :, :1].copy(), np.full(1, 0.5, np.float32), x[..., ::-1].copy()):
            assert lowered.check(node, [x, other], (1,) if other.size == 1 else (), threads=threads, tolerance=0) == 1
        assert not lowered.offers(node, [np.ones((3, 4), np.int64)] * 2)
    node = ops.TABLE["Where"].node(["c", "a", "b"], ["y"])
    for condition in (x > 0, (x > 0)[:1, :1], (x > 0)[..., :1].copy()):
        number = np.full(1, -np.inf, np.float32)
        assert lowered.check(node, [condition, x, number], (2,), threads=threads, tolerance=0) == 1
        assert lowered.check(node, [condition, x[..., :1].copy(), x], threads=threads, tolerance=0) == 1
    assert not lowered.offers(node, [x > 0, *[np.ones(x.shape, np.int64)] * 2])


def test_many_operands():
    arrays = [np.full((3,), at, np.float32) for at in range(MAX_OPERANDS + 1)]
    names = [f"x{at}" for at in range(len(arrays))]
    assert lowered.check(ops.TABLE["Sum"].node(names[:-1], ["y"]), arrays[:-1]) == 1
    assert lowered.check(ops.TABLE["Sum"].node(names, ["y"]), arrays) == 0


def test_the_same_bits_on_any_number_of_threads():
    rng = np.random.default_rng(0)
    x, z = draws.numbers(rng, (3, 5, 1000)), draws.numbers(rng, (3, 1, 1000))
    tree = apply("mul", apply("tanh", X), apply("sigmoid", Z))
    results = [computed(tree, np.empty_like(x), x, z, threads=threads) for threads in (1, 2, 3, 8)]
    assert all(np.array_equal(results[0], other) for other in results[1:])
