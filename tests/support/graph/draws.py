"""Strategies of cases for the graph's operators: element by element, windows, planes and products."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cpuconv.isa import current
from cpuconv.kernels.elementwise.expression import Operand, apply
from support.graphs import Case

LANES = current().lanes
FLOAT, INT, INT32 = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.int32)
SIZES = st.integers(1, 5)
CHANNELS = st.sampled_from((1, 3, LANES - 1, LANES, LANES + 1))
SHAPES = st.one_of(
    st.lists(SIZES, min_size=1, max_size=4).map(tuple),
    st.tuples(SIZES, CHANNELS, SIZES),
    st.tuples(SIZES, CHANNELS, SIZES, SIZES),
)
GENERATORS = st.integers(0, 2**16).map(np.random.default_rng)
FLAG = st.integers(0, 1)
ACTIVATIONS = st.sampled_from((None, ("relu",), ("clip", -0.5, 0.75), ("sigmoid",), ("gelu",)))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype = FLOAT) -> np.ndarray:
    """Numbers of a few units in size, of either sign where the type has one."""
    normal = rng.normal(size=shape) * 2
    return (normal > 0) if dtype.kind == "b" else (np.abs(normal) if dtype.kind == "u" else normal).astype(dtype)


@st.composite
def unary(draw, least=None, dtypes=(FLOAT,), **attributes):
    rng = draw(GENERATORS)
    x = numbers(rng, draw(SHAPES), draw(st.sampled_from(dtypes)))
    return Case([x if least is None else np.abs(x) + x.dtype.type(least)], {k: draw(v) for k, v in attributes.items()})


@st.composite
def broadcast(draw, count=2, dtypes=(FLOAT,), nonzero=False, base=None, onto_first=False, **attributes):
    """Operands whose axes are of size 1 here and there, and some of lower rank."""
    rng, full, dtype = draw(GENERATORS), draw(SHAPES), draw(st.sampled_from(dtypes))
    arrays = []
    for at in range(count):
        whole = onto_first and at == 0
        shape = tuple(size if whole or draw(st.booleans()) else 1 for size in full)
        x = numbers(rng, shape if whole else shape[draw(st.integers(0, len(shape) - 1)) :], dtype)
        arrays.append(np.where(x == 0, 1, x).astype(dtype) if nonzero and at else x)
    if base is not None:
        arrays[0] = np.abs(arrays[0]) + dtype.type(base)
    return Case(arrays, {k: draw(v) for k, v in attributes.items()})


@st.composite
def clip(draw):
    rng, dtype = draw(GENERATORS), draw(st.sampled_from((FLOAT, INT32)))
    ends = [numbers(rng, (), dtype) if draw(st.booleans()) else None for _ in range(2)]
    return Case([numbers(rng, draw(SHAPES), dtype), *ends])


@st.composite
def where(draw):
    case = draw(broadcast(3))
    return Case([case.arrays[0] > 0, *case.arrays[1:]])


@st.composite
def expressions(draw, count):
    """Trees over some of `count` operands that are right for numbers of either sign, and of a moderate size."""
    tree = Operand(draw(st.integers(0, count - 1)))
    for _ in range(draw(st.integers(1, 4))):
        other = draw(st.one_of(st.integers(0, count - 1).map(Operand), st.sampled_from((-1.5, 0.0, 0.5, 3.0))))
        name = draw(st.sampled_from(("add", "sub", "mul", "max", "min", "prelu", "sigmoid", "tanh", "abs", "erf")))
        unary = name in ("sigmoid", "tanh", "abs", "erf")
        tree = apply(name, tree) if unary else apply(name, *((tree, other) if draw(st.booleans()) else (other, tree)))
    return tree


@st.composite
def elementwise(draw):
    count = draw(st.integers(1, 4))
    case = draw(broadcast(count))
    return Case(case.arrays, {"expression": draw(expressions(count))})


# --- windows --------------------------------------------------------------------------------------------------------


@st.composite
def sliding(draw, rank, ceil=False):
    """A kernel and the attributes of a window."""
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    attributes = {"strides": [draw(st.integers(1, 3)) for _ in range(rank)]}
    auto = draw(st.sampled_from(("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")))
    attributes["auto_pad"] = auto
    if auto.startswith("SAME"):  # ONNX Runtime refuses to skip inputs
        attributes["strides"] = list(map(min, attributes["strides"], kernel))
    if auto == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, size - 1)) for size in (*kernel, *kernel)]
        if ceil:
            attributes["ceil_mode"] = draw(FLAG)
        attributes["dilations"] = [draw(st.integers(1, 2)) for _ in range(rank)]
    return kernel, attributes


@st.composite
def conv(draw):
    rng, rank, groups = draw(GENERATORS), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    kernel, attributes = draw(sliding(rank))
    each, out = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    x = numbers(rng, (draw(st.integers(1, 2)), each * groups, *(draw(st.integers(5, 8)) for _ in range(rank))))
    w = numbers(rng, (out * groups, each, *kernel))
    bias = [numbers(rng, (out * groups,))] if draw(st.booleans()) else []
    return Case([x, w, *bias], {**attributes, "group": groups, "kernel_shape": kernel})


@st.composite
def conv_transpose(draw):
    rng, rank, groups = draw(GENERATORS), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    attributes = {"strides": strides, "dilations": [draw(st.integers(1, 2)) for _ in range(rank)]}
    attributes["pads"] = [draw(st.integers(0, (size - 1) // 2)) for size in (*kernel, *kernel)]
    attributes["output_padding"] = [draw(st.integers(0, step - 1)) for step in strides]
    x = numbers(rng, (draw(st.integers(1, 2)), 2, *(draw(st.integers(2, 5)) for _ in range(rank))))
    w = numbers(rng, (2, draw(st.integers(1, 3)), *kernel))
    bias = [numbers(rng, (w.shape[1] * groups,))] if draw(st.booleans()) else []
    return Case([x, w, *bias], {**attributes, "group": groups})


@st.composite
def pool(draw, **attributes):
    rank = draw(st.integers(1, 2))
    kernel, window = draw(sliding(rank, ceil=True))
    x = numbers(
        draw(GENERATORS), (draw(st.integers(1, 2)), draw(CHANNELS), *(draw(st.integers(5, 8)) for _ in range(rank)))
    )
    return Case([x], {**window, "kernel_shape": kernel, **{k: draw(v) for k, v in attributes.items()}})


@st.composite
def planes(draw, parameters=0, least_rank=3, least=1, **attributes):
    """(N, C, ...) and vectors over the channels, the last of them positive."""
    rng = draw(GENERATORS)
    spatial = draw(st.lists(st.integers(least, 5), min_size=least_rank - 2, max_size=2))
    shape = (draw(st.integers(1, 3)), draw(CHANNELS), *spatial)
    vectors = [numbers(rng, shape[1:2]) for _ in range(parameters)]
    if parameters == 4:
        vectors[3] = np.abs(vectors[3])
    return Case([numbers(rng, shape), *vectors], {k: draw(v) for k, v in attributes.items()})


@st.composite
def volume_norm(draw):
    """Slices of volumes, channels of one and of several blocks; an epilogue that keeps zeros or not, and a residual."""
    rng, volumes, c = draw(GENERATORS), draw(st.integers(1, 3)), draw(st.sampled_from((3, 16, 32, 40)))
    shape = volumes * draw(st.integers(1, 3)), c, draw(st.integers(1, 4)), draw(st.integers(1, 5))
    activation = draw(st.sampled_from((None, ("leaky_relu", 0.25), ("sigmoid",), ("clip", 0.5, 6.0))))
    arrays = [numbers(rng, shape), numbers(rng, (c,)), numbers(rng, (c,))]
    arrays += [numbers(rng, shape)] * draw(st.integers(0, 1))
    return Case(arrays, {"volumes": volumes, "activation": activation, "epsilon": 1e-3})


@st.composite
def group_norm(draw):
    rng, groups, each = draw(GENERATORS), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    c = groups * each
    x = numbers(rng, (draw(st.integers(1, 2)), c, draw(st.integers(2, 4)), draw(st.integers(2, 4))))
    return Case([x, numbers(rng, (c,)), numbers(rng, (c,))], {"num_groups": groups})


@st.composite
def layer_norm(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    vectors = [numbers(rng, shape[axis:]) for _ in range(draw(st.integers(1, 2)))]
    return Case([numbers(rng, shape), *vectors], {"axis": axis}, draw(st.sampled_from((1, 3))))


@st.composite
def along(draw, **attributes):
    shape = draw(SHAPES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return Case([numbers(draw(GENERATORS), shape)], {"axis": axis, **{k: draw(v) for k, v in attributes.items()}})


# --- products -------------------------------------------------------------------------------------------------------


@st.composite
def matmul(draw):
    rng, (m, k, n) = draw(GENERATORS), [draw(SIZES) for _ in range(3)]
    dtype = draw(st.sampled_from((FLOAT, INT32)))
    stack = draw(st.lists(SIZES, max_size=2))
    left = [*([size if draw(st.booleans()) else 1 for size in stack]), m, k]
    right = [*stack[draw(st.integers(0, len(stack))) :], k, n]
    if draw(st.booleans()) and len(right) == 2:
        right = [k]
    return Case([numbers(rng, tuple(left), dtype), numbers(rng, tuple(right), dtype)])


@st.composite
def linear(draw):
    rng, rows, (k, n) = draw(GENERATORS), draw(SHAPES), [draw(SIZES) for _ in range(2)]
    y = (*rows, n)
    bias, residual = (numbers(rng, shape) if draw(st.booleans()) else None for shape in (y[-1:], y))
    return Case([numbers(rng, (*rows, k)), numbers(rng, (k, n)), bias, residual], {"activation": draw(ACTIVATIONS)})


@st.composite
def attention(draw):
    rng, stack = draw(GENERATORS), draw(st.lists(st.integers(1, 3), max_size=2))
    rows, keys, depth, width = (draw(SIZES) for _ in range(4))
    masks = st.sampled_from((None, (keys,), (rows, keys), (*stack, 1, keys), (*stack, rows, keys)))
    shapes = ((*stack, rows, depth), (*stack, depth, keys), (*stack, keys, width))
    arrays = [numbers(rng, shape) for shape in shapes]
    arrays += [numbers(rng, shape) for shape in (draw(masks),) if shape is not None]
    perm = draw(st.one_of(st.none(), st.permutations(range(len(stack) + 2))))
    return Case(arrays, {"scale": draw(st.sampled_from((1.0, 0.125, -0.5))), "perm": perm})


@st.composite
def gemm(draw):
    rng, (m, k, n) = draw(GENERATORS), [draw(SIZES) for _ in range(3)]
    flags = {"transA": draw(FLAG), "transB": draw(FLAG)}
    a, b = numbers(rng, (k, m) if flags["transA"] else (m, k)), numbers(rng, (n, k) if flags["transB"] else (k, n))
    c = draw(st.sampled_from((None, (), (n,), (1, n), (m, 1), (m, n))))
    arrays = [a, b] if c is None else [a, b, numbers(rng, c)]
    return Case(
        arrays, {**flags, "alpha": draw(st.sampled_from((1.0, 0.5))), "beta": draw(st.sampled_from((1.0, 2.0)))}
    )


@st.composite
def einsum(draw):
    rng, sizes = draw(GENERATORS), {letter: draw(SIZES) for letter in "bijk"}
    equation = draw(
        st.sampled_from(("bij,bjk->bik", "bij,bkj->bik", "ij,jk", "bij->jbi", "bij,j->bi", "i,i->", "...ij,jk->...ik"))
    )
    shapes = [tuple(map(sizes.get, term.replace("...", "b"))) for term in equation.split("->")[0].split(",")]
    return Case([numbers(rng, shape) for shape in shapes], {"equation": equation})


# --- planes ---------------------------------------------------------------------------------------------------------


@st.composite
def resize(draw):
    rng, channels = draw(GENERATORS), draw(CHANNELS)
    shape = (1, channels, *(draw(st.sampled_from((4, 6, 8))) for _ in range(2)))
    attributes = {
        "mode": draw(st.sampled_from(("nearest", "linear", "cubic"))),
        "coordinate_transformation_mode": draw(
            st.sampled_from(
                (
                    "half_pixel",
                    "pytorch_half_pixel",
                    "align_corners",
                    "asymmetric",
                    "half_pixel_symmetric",
                    "tf_crop_and_resize",
                )
            )
        ),
        "nearest_mode": draw(st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))),
    }
    if attributes["mode"] == "cubic":
        attributes |= {"exclude_outside": draw(FLAG), "cubic_coeff_a": draw(st.sampled_from((-0.5, -0.75)))}
    if attributes["mode"] != "nearest":
        attributes["antialias"] = draw(FLAG)
    roi = None
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        roi = np.array([0, 0, 0.25, -0.25, 1, 1, 0.75, 1.25], np.float32)
        attributes["extrapolation_value"] = 10.0
    if draw(st.booleans()):
        sizes = np.array([1, channels, *(draw(st.integers(2, 9)) for _ in range(2))], INT)
        return Case([numbers(rng, shape), roi, None, sizes], attributes)
    scales = [1, 1, *(draw(st.sampled_from((0.5, 1.0, 1.5, 2.0, 3.0))) for _ in range(2))]  # to whole numbers
    return Case([numbers(rng, shape), roi, np.array(scales, np.float32)], attributes)


@st.composite
def blocks(draw, to_space):
    n, c, h, w, b = (draw(st.integers(1, 3)) for _ in range(5))
    shape = (n, c * b * b, h, w) if to_space else (n, c, h * b, w * b)
    modes = {"mode": draw(st.sampled_from(("DCR", "CRD")))} if to_space else {}
    return Case([numbers(draw(GENERATORS), shape)], {"blocksize": b, **modes})


@st.composite
def unpool(draw):
    rng, kernel = draw(GENERATORS), [draw(st.integers(1, 3)) for _ in range(2)]
    strides = [draw(st.integers(1, 3)) for _ in range(2)]
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *(draw(st.integers(1, 4)) for _ in range(2)))
    out = (
        *shape[:2],
        *((size - 1) * step + width for size, step, width in zip(shape[2:], strides, kernel, strict=True)),
    )
    stated = None
    if draw(st.booleans()):
        out = (*out[:2], *(size + draw(st.integers(0, 1)) for size in out[2:]))
        stated = np.array(out, INT)
    places = rng.permutation(int(np.prod(out)))[: int(np.prod(shape))]
    x = numbers(rng, shape)
    if places.size < x.size:  # windows overlap: which of two elements stays is open
        x, places = np.ones_like(x), np.resize(places, x.size)
    arrays = [x, places.reshape(shape), *([] if stated is None else [stated])]
    return Case(arrays, {"kernel_shape": kernel, "strides": strides})


@st.composite
def grid_sample(draw):
    """Planes, and in the modes that ONNX Runtime has for them volumes; a grid that reaches over the edge."""
    rng = draw(GENERATORS)
    mode = draw(st.sampled_from(("linear", "nearest", "cubic")))
    rank = 2 if mode == "cubic" else draw(st.integers(2, 3))
    n, c, *sizes = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *(draw(st.integers(2, 6)) for _ in range(rank)))
    x = numbers(rng, (n, c, *sizes))
    grid = rng.uniform(-1.4, 1.4, (n, *(draw(st.integers(1, 4)) for _ in range(rank)), rank)).astype(np.float32)
    padding = draw(st.sampled_from(("zeros", "border", "reflection")))
    return Case([x, grid], {"mode": mode, "padding_mode": padding, "align_corners": draw(FLAG)})
