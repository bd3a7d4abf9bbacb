"""Strategies of cases for the graph's operators that work along axes, change shapes or index."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from support.graph.draws import FLAG, FLOAT, GENERATORS, INT, INT32, SHAPES, SIZES, broadcast, numbers
from support.graphs import Case


def some_axes(draw, rank: int, least: int = 0) -> list[int]:
    """Different axes, some counted from the end."""
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=min(least, rank), max_size=rank))
    return [axis - rank if draw(st.booleans()) else axis for axis in axes]


@st.composite
def reduce(draw, positive=False, dtypes=(FLOAT, INT32)):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    x = numbers(rng, shape, draw(st.sampled_from(dtypes)))
    axes = np.array(some_axes(draw, len(shape)), INT)
    given = [axes] if axes.size or draw(st.booleans()) else []
    flags = {"keepdims": draw(FLAG), "noop_with_empty_axes": 0 if given and axes.size else draw(FLAG)}
    return Case([np.abs(x) + x.dtype.type(1) if positive else x, *given], flags)


@st.composite
def concat(draw):
    rng, shape = draw(GENERATORS), list(draw(SHAPES))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        shape[axis] = draw(st.integers(0, 3))
        arrays.append(numbers(rng, tuple(shape)))
    return Case(arrays, {"axis": axis})


@st.composite
def interleave_images(draw):
    rng, shape = draw(GENERATORS), _images(draw)
    return Case([numbers(rng, shape) for _ in range(draw(st.integers(1, 3)))])


@st.composite
def unfold_images(draw):
    """Windows that may overlap; images in whole channel blocks or not."""
    kernel, stride, more = (draw(st.integers(low, 3)) for low in (1, 1, 0))
    _, *shape = _images(draw)
    return Case([numbers(draw(GENERATORS), (kernel + more, *shape))], {"kernel": kernel, "stride": stride})


def _images(draw):
    """A shape (N, C, H, W), with whole channel blocks or not."""
    sizes = st.integers(1, 3)
    return draw(sizes), draw(st.sampled_from((1, 6, 16, 32, 40))), draw(sizes), draw(sizes)


@st.composite
def split(draw):
    rng, shape = draw(GENERATORS), list(draw(SHAPES))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    if draw(st.booleans()):
        parts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
        shape[axis] = sum(parts)
        return Case([numbers(rng, tuple(shape)), np.array(parts, INT)], {"axis": axis}, len(parts))
    count = draw(st.integers(1, shape[axis]))
    count = -(-shape[axis] // -(-shape[axis] // count))  # so that no part is empty
    return Case([numbers(rng, tuple(shape))], {"axis": axis, "num_outputs": count}, count)


@st.composite
def slice_(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    axes = some_axes(draw, len(shape), 1)
    near, extremes = st.integers(-7, 7), (2**31 - 1, -(2**63), 2**63 - 1)
    starts = [draw(near | st.sampled_from(extremes)) for _ in axes]
    steps = [draw(st.sampled_from((-2, -1, 1, 2, 3))) for _ in axes]
    # Backwards, ONNX Runtime takes the largest number for the smallest.
    ends = [draw(near | st.sampled_from(extremes if step > 0 else extremes[1:2])) for step in steps]
    return Case([numbers(rng, shape), *(np.array(numbers, INT) for numbers in (starts, ends, axes, steps))])


@st.composite
def pad(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    mode = draw(st.sampled_from(("constant", "reflect", "edge", "wrap")))
    axes = [axis % len(shape) for axis in some_axes(draw, len(shape), 1)]
    most = [min(3, shape[axis] - 1) if mode in ("reflect", "wrap") else 3 for axis in axes]
    pads = [draw(st.integers(0, limit)) for limit in (*most, *most)]
    constant = numbers(rng, ()) if draw(st.booleans()) and mode == "constant" else None
    return Case([numbers(rng, shape), np.array(pads, INT), constant, np.array(axes, INT)], {"mode": mode})


@st.composite
def tile(draw):
    shape = draw(SHAPES)
    return Case([numbers(draw(GENERATORS), shape), np.array([draw(st.integers(0, 3)) for _ in shape], INT)])


@st.composite
def transpose(draw):
    shape = draw(SHAPES)
    perm = {"perm": draw(st.permutations(range(len(shape))))} if draw(st.booleans()) else {}
    return Case([numbers(draw(GENERATORS), shape)], perm)


@st.composite
def reshape(draw):
    shape = draw(SHAPES)
    sizes = list(draw(st.permutations(shape)))
    at = draw(st.integers(0, len(sizes) - 1))
    sizes[at] = draw(st.sampled_from((sizes[at], -1, 0 if sizes[at] == shape[at] else -1)))
    return Case([numbers(draw(GENERATORS), shape), np.array(sizes, INT)])


@st.composite
def flatten(draw):
    shape = draw(SHAPES)
    return Case([numbers(draw(GENERATORS), shape)], {"axis": draw(st.integers(-len(shape), len(shape)))})


@st.composite
def squeeze(draw):
    shape = tuple(size if draw(st.booleans()) else 1 for size in draw(SHAPES))
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    axes = draw(st.lists(st.sampled_from(ones), unique=True)) if ones else []
    return Case([numbers(draw(GENERATORS), shape), *([np.array(axes, INT)] if axes or not ones else [])])


@st.composite
def unsqueeze(draw):
    shape = draw(SHAPES)
    return Case([numbers(draw(GENERATORS), shape), np.array(some_axes(draw, len(shape) + 1, 1)[:1], INT)])


@st.composite
def cast(draw):
    dtypes = ("float32", "float64", "float16", "int32", "int64", "int8", "bool")
    x = numbers(draw(GENERATORS), draw(SHAPES), np.dtype(draw(st.sampled_from(dtypes))))
    codes = {"float32": 1, "float64": 11, "float16": 10, "int32": 6, "int64": 7, "int8": 3, "bool": 9}
    return Case([x], {"to": codes[draw(st.sampled_from(dtypes))]})


@st.composite
def cast_like(draw):
    case = draw(cast())
    other = draw(st.sampled_from(("float64", "int32", "bool", case.arrays[0].dtype)))
    return Case([*case.arrays, np.zeros(1, other)])


@st.composite
def expand(draw):
    case = draw(broadcast(2))
    return Case([case.arrays[0], np.array(case.arrays[1].shape, INT)])


@st.composite
def shape_of(draw):
    ends = {name: draw(st.integers(-5, 5)) for name in ("start", "end") if draw(st.booleans())}
    return Case([numbers(draw(GENERATORS), draw(SHAPES))], ends)


@st.composite
def constant_of_shape(draw):
    from onnx import numpy_helper

    value = draw(st.sampled_from((None, np.array([3], np.int64), np.array([1.5], np.float32))))
    attributes = {} if value is None else {"value": numpy_helper.from_array(value)}
    return Case([np.array(draw(SHAPES), INT)], attributes)


@st.composite
def range_(draw):
    start, limit, delta = draw(st.integers(-5, 5)), draw(st.integers(-9, 9)), draw(st.sampled_from((-2, -1, 1, 3)))
    dtype = draw(st.sampled_from((FLOAT, INT)))
    return Case([np.array(number, dtype) for number in (start, limit, delta)])


@st.composite
def gather(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    indices = rng.integers(-shape[axis], shape[axis], draw(st.lists(SIZES, max_size=2)))
    return Case([numbers(rng, shape), np.asarray(indices, INT)], {"axis": axis})


@st.composite
def gather_elements(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    counts = [draw(st.integers(1, size)) for size in shape]
    indices = rng.integers(-shape[axis], shape[axis], counts)
    return Case([numbers(rng, shape), indices.astype(INT)], {"axis": axis})


@st.composite
def gather_nd(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    batch = draw(st.integers(0, len(shape) - 1))
    depth = draw(st.integers(1, len(shape) - batch))
    count = (*shape[:batch], draw(SIZES))
    columns = [rng.integers(-size, size, count) for size in shape[batch : batch + depth]]
    return Case([numbers(rng, shape), np.stack(columns, -1).astype(INT)], {"batch_dims": batch})


REDUCTION = st.sampled_from(("none", "add", "mul", "max", "min"))


@st.composite
def scatter_elements(draw):
    """Different indices along the axis, as what equal ones mean is left open."""
    rng, shape = draw(GENERATORS), draw(SHAPES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    counts = [draw(st.integers(1, size)) for size in shape]
    places = rng.permutation(shape[axis])[: counts[axis]].reshape(-1, *[1] * (len(shape) - 1 - axis % len(shape)))
    indices = np.broadcast_to(places, counts).astype(INT)
    return Case(
        [numbers(rng, shape), indices, numbers(rng, tuple(counts))], {"axis": axis, "reduction": draw(REDUCTION)}
    )


@st.composite
def scatter_nd(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    depth = draw(st.integers(1, len(shape)))
    every = np.indices(shape[:depth]).reshape(depth, -1).T
    indices = rng.permutation(every)[: draw(st.integers(1, len(every)))].astype(INT)
    updates = numbers(rng, (len(indices), *shape[depth:]))
    return Case([numbers(rng, shape), indices, updates], {"reduction": draw(REDUCTION)})


@st.composite
def tensor_scatter(draw):
    rng, shape = draw(GENERATORS), (*draw(SHAPES), draw(SIZES))
    axis = draw(st.integers(1, len(shape) - 1))
    length = draw(st.integers(1, shape[axis]))
    starts = rng.integers(0, shape[axis] - length + 1, shape[0]).astype(INT)
    updates = numbers(rng, tuple(length if at == axis else size for at, size in enumerate(shape)))
    mode = draw(st.sampled_from(("linear", "circular")))
    arrays = [numbers(rng, shape), updates, *([starts] if draw(st.booleans()) else [])]
    return Case(arrays, {"axis": axis - draw(st.sampled_from((0, len(shape)))), "mode": mode})


@st.composite
def one_hot(draw):
    rng, depth, shape = draw(GENERATORS), draw(SIZES), draw(st.lists(SIZES, max_size=3).map(tuple))
    indices = np.asarray(rng.integers(-depth, depth, shape), INT)
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    return Case([indices, np.array(depth, INT), np.float32([2, 3])], {"axis": axis})


@st.composite
def trilu(draw):
    shape = (*draw(st.lists(SIZES, max_size=1)), draw(SIZES), draw(SIZES))
    k = [np.array(draw(st.integers(-6, 6)), INT)] if draw(st.booleans()) else []
    return Case([numbers(draw(GENERATORS), shape), *k], {"upper": draw(FLAG)})


@st.composite
def top_k(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    x = rng.integers(-2, 3, shape).astype(draw(st.sampled_from((FLOAT, INT))))
    k = np.array([draw(st.integers(0, shape[axis]))], INT)
    return Case([x, k], {"axis": axis, "largest": draw(FLAG)}, 2)


@st.composite
def leading(draw):
    shape = draw(SHAPES)
    axis = draw(st.integers(0, len(shape) - 1))
    return Case([numbers(draw(GENERATORS), shape), np.array([draw(st.integers(0, shape[axis]))], INT)], {"axis": axis})


@st.composite
def cum_sum(draw):
    shape = draw(SHAPES)
    axis = np.array(draw(st.integers(-len(shape), len(shape) - 1)), INT)
    return Case([numbers(draw(GENERATORS), shape), axis], {"exclusive": draw(FLAG), "reverse": draw(FLAG)})


@st.composite
def compress(draw):
    rng, shape = draw(GENERATORS), draw(SHAPES)
    axis = draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    size = int(np.prod(shape)) if axis is None else shape[axis]
    return Case([numbers(rng, shape), rng.random(size) < 0.5], {} if axis is None else {"axis": axis})
