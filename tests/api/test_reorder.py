"""Reorders of every pair of layouts against NumPy's, from memory of any strides, and what they refuse."""

from __future__ import annotations

import functools
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.conv.reorder import reorder
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Operand, Ref, Space
from cpuconv.kernels.copies import reorder_steps
from cpuconv.kernels.copies.reorder import PACK, UNPACK
from cpuconv.runtime import Program
from cpuconv.solvers.shared.base import contiguous
from support.guarded import EDGES, named, pages, place
from support.moved import by
from support.strided import backwards, numbered, sliced

reorder_module = sys.modules[reorder.__module__]  # the package gives its name to the function
names = st.sampled_from(layouts.NAMES)
shapes = st.tuples(st.integers(1, 2), st.integers(1, 70), st.integers(1, 20), st.integers(1, 20))
quick = settings(max_examples=60, deadline=None)


def physical(shape: tuple[int, int, int, int], layout: str) -> np.ndarray:
    """A numbered activation whose tail channels are NaN."""
    x = layouts.from_nchw(numbered(shape), layout)
    if shape[1] % layouts.get(layout).block:
        x[:, -1, ..., shape[1] % layouts.get(layout).block :] = np.nan
    return x


SPREADS = {"flipped": backwards, "sliced": sliced, "sparse": lambda x: sliced(x, 2)}


def reordered(x: np.ndarray, src: str, dst: str, channels: int) -> np.ndarray:
    """The reorder of memory at each edge."""
    about = f"reorder {x.shape} from {src} to {dst}"
    first, second = (
        named(about, lambda edge=edge: reorder(place(x, edge), src, dst, channels=channels)) for edge in EDGES
    )
    assert np.array_equal(first, second)
    return first


@quick
@given(shapes, names, names)
def test_as_numpy_does_with_zero_tails(shape, src, dst):
    x = physical(shape, src)
    y = reordered(x, src, dst, shape[1])
    assert y.dtype == np.float32 and y.flags.c_contiguous
    assert np.array_equal(y, layouts.convert(x, src, dst, channels=shape[1]))


@quick
@given(shapes, names, names, st.sampled_from(sorted(SPREADS)))
def test_any_strides(shape, src, dst, kind):
    x = SPREADS[kind](physical(shape, src))
    assert np.array_equal(reordered(x, src, dst, shape[1]), layouts.convert(x, src, dst, channels=shape[1]))


@pytest.mark.parametrize("size", [1, 3, 4, 7, 15, 16, 17, 33])
@pytest.mark.parametrize("channels", [1, 4, 15, 16, 17])
def test_rows_around_the_vector_width(size, channels):
    x = numbered((1, channels, size + 1, size + 2))[:, :, :size, :size]  # rows cannot be joined
    blocked = layouts.blocked(current().lanes).name
    assert np.array_equal(reorder(x, "NCHW", blocked), layouts.from_nchw(x, blocked))
    back = reorder(layouts.from_nchw(x, blocked), blocked, "NCHW", channels=channels)
    assert np.array_equal(back, x)


def test_large_enough_for_threads():
    x = numbered((2, 40, 64, 64))
    for name in layouts.NAMES:
        moved = reorder(x, "NCHW", name)
        assert np.array_equal(moved, layouts.from_nchw(x, name))
        assert np.array_equal(reorder(moved, name, "NCHW", channels=40), x)


def test_channels_default_to_all_that_are_stored():
    x = layouts.from_nchw(numbered((1, 5, 2, 2)), "NCHW8c")
    assert reorder(x, "NCHW8c", "NCHW").shape == (1, 8, 2, 2)
    assert reorder(x, "NCHW8c", "NCHW44", channels=5).shape == (1, 2, 2, 2, 4)


def test_the_result_is_a_copy():
    x = numbered((1, 3, 4, 4))
    assert not np.shares_memory(reorder(x, "NCHW", "NCHW"), x)


def test_empty_batch():
    assert reorder(np.zeros((0, 3, 4, 4), np.float32), "NCHW", "NCHW16c").shape == (0, 1, 4, 4, 16)


@quick
@given(shapes)
def test_the_shortest_way_is_taken(shape):
    assume(shape[2] * shape[3] > 1)
    blocked = layouts.blocked(current().lanes).name
    full = (shape[0], divide_up(shape[1], current().lanes), *shape[2:])
    ways = {
        ("NCHW", blocked): PACK,
        ("NHWC", blocked): PACK,
        (blocked, "NCHW"): UNPACK,
        ("NHWC", "NCHW"): UNPACK,
        ("NCHW", "NHWC"): PACK,
        ("NCHW", "NCHW4c"): PACK,
        ("NCHW4c", "NHWC"): UNPACK if current().lanes == 4 else PACK,  # a vector holds a block, or several
    }
    assume(shape[1] > 1)
    for (src, dst), mode in ways.items():
        views = (Operand(Ref(name), contiguous(layout, full)) for name, layout in (("x", src), ("y", dst)))
        assert by(reorder_steps)(current(), Space(), full, *views, threads=1).tile.mode == mode


def test_what_lies_around_the_views_stays():
    """Vectors that reach beyond a pixel's channels leave nothing there, whatever the strides of the target."""
    for channels, src, dst, edge in itertools.product((3, 5, 20, 33), layouts.NAMES, layouts.NAMES, EDGES):
        shape = (2, channels, 5, 9)
        x = place(physical(shape, src), edge)
        expected = layouts.convert(x, src, dst, channels=channels)
        around = np.full([size + 1 for size in expected.shape], 7, np.float32)
        around[tuple(slice(size) for size in expected.shape)] = np.nan
        inner = place(around[tuple(slice(size) for size in expected.shape)], edge, 7)
        views = [
            Operand(Ref(name), layouts.get(layout).strides(each.strides))
            for name, layout, each in (("x", src, x), ("y", dst, inner))
        ]
        step = by(reorder_steps)(current(), space := Space(), shape, *views, threads=1)
        named(f"{src} to {dst}, {channels} channels", lambda: run_step(step, space, x, inner))  # noqa: B023
        assert np.array_equal(inner, expected)
        inner[...] = 7
        assert (pages(inner) == 7).all()


def run_step(step, space: Space, x: np.ndarray, y: np.ndarray) -> None:
    """The step on these arrays."""
    workspace = np.empty(space.size, np.uint8)
    at = {"x": x.ctypes.data, "y": y.ctypes.data, "workspace": workspace.ctypes.data}
    words = {k: at[v.name] + v.offset if isinstance(v, Ref) else int(v) for k, v in step.args.items()}
    Program([(step.compile(), step.kernel.pack(words), step.parts)], 1).run()


def test_into_memory_that_is_there():
    x = physical((2, 20, 5, 5), "NCHW8c")
    out = np.full(layouts.get("NCHW16c").shape(2, 20, 5, 5), np.nan, np.float32)
    assert reorder(x, "NCHW8c", "NCHW16c", channels=20, out=out) is out
    assert np.array_equal(out, layouts.convert(x, "NCHW8c", "NCHW16c", channels=20))


@pytest.mark.parametrize("apart", [0, 1, 74])
def test_a_result_that_overlaps_its_source_is_refused(apart):
    memory = numbered((200,))
    x, y = memory[apart : apart + 75].reshape(1, 3, 5, 5), memory[:75].reshape(1, 5, 5, 3)
    for source, target, layouts_ in ((x, y, ("NCHW", "NHWC")), (y, x, ("NHWC", "NCHW"))):
        with pytest.raises(ArgumentError, match="'out' must be separate memory"):
            reorder(source, *layouts_, out=target)
    beside = memory[75:150].reshape(1, 5, 5, 3)
    assert np.array_equal(reorder(memory[:75].reshape(1, 3, 5, 5), "NCHW", "NHWC", out=beside).ravel(), beside.ravel())


def test_remembered_calls_still_look_at_their_arguments():
    x = numbered((1, 16, 4, 4))
    blocked = reorder(x, "NCHW", "NCHW16c")
    assert np.array_equal(reorder(blocked, "NCHW16c", "NCHW", channels=16), x)
    with pytest.raises(ArgumentTypeError, match="'channels' must be an integer"):
        reorder(blocked, "NCHW16c", "NCHW", channels=16.0)
    with pytest.raises(ArgumentError, match="'channels' must be from 1 to 16"):
        reorder(blocked, "NCHW16c", "NCHW", channels=17)
    with pytest.raises(ArgumentError, match="'src_layout' must be one of NCHW"):
        reorder(x, ["NCHW"], "NHWC")
    backwards = x[..., ::-1]
    assert np.array_equal(reorder(backwards, "NCHW", "NCHW16c"), layouts.from_nchw(backwards, "NCHW16c"))


def test_what_is_remembered_is_bounded(monkeypatch):
    kept = functools.lru_cache(maxsize=4)(reorder_module._Move)
    monkeypatch.setattr(reorder_module, "_moves", kept)
    for width in (*range(1, 12), 1):
        x = numbered((1, 3, 2, width))
        assert np.array_equal(reorder(x, "NCHW", "NHWC"), layouts.convert(x, "NCHW", "NHWC"))
    assert kept.cache_info().currsize == 4
    assert kept.cache_info().misses == 12  # the first had gone


def test_eight_threads_at_once():
    """Of one kind of call and of several, through the buffers too."""
    cases = [((1, 20, 9, 9), "NCHW", "NCHW8c"), ((2, 21, 7, 7), "NCHW4c", "NHWC"), ((1, 40, 64, 64), "NHWC", "NCHW")]

    def work(number: int) -> bool:
        right = True
        for turn in range(40):
            shape, src, dst = cases[(number + turn) % len(cases)]
            x = layouts.from_nchw(numbered(shape) + number, src)
            y = reorder(x, src, dst, channels=shape[1])
            right &= np.array_equal(y, layouts.convert(x, src, dst, channels=shape[1]))
        return right

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def divide_up(a: int, b: int) -> int:
    """The least multiple of b that is at least a."""
    return -(-a // b) * b


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


REFUSED = [  # x, layouts, what is given beside
    ((zeros(1, 2, 3), "NCHW", "NHWC"), {}, ArgumentError, "'x' must be of rank 4 for NCHW"),
    ((zeros(1, 1, 2, 2, 8), "NCHW16c", "NCHW"), {}, ArgumentError, "'x' must be of shape"),
    ((zeros(1, 2, 3, 3, dtype=np.float64), "NCHW", "NHWC"), {}, ArgumentTypeError, "'x' must be of dtype float32"),
    (([[1.0]], "NCHW", "NHWC"), {}, ArgumentTypeError, "'x' must be a NumPy array"),
    ((zeros(1, 2, 3, 3), "nchw", "NHWC"), {}, ArgumentError, "'src_layout' must be one of NCHW"),
    ((zeros(1, 2, 3, 3), "NCHW", "CHWN"), {}, ArgumentError, "'dst_layout' must be one of NCHW"),
    ((zeros(1, 2, 3, 3, 8), "NCHW8c", "NCHW"), {"channels": 8}, ArgumentError, "from 9 to 16, what 'x' of shape"),
    ((zeros(1, 2, 3, 3, 8), "NCHW8c", "NCHW"), {"channels": 17}, ArgumentError, "'channels' must be from 9 to 16"),
    ((zeros(1, 2, 3, 3), "NHWC", "NCHW"), {"channels": 2}, ArgumentError, "'channels' must be 3, what"),
    ((zeros(1, 2, 3, 3), "NHWC", "NCHW"), {"channels": 3.0}, ArgumentTypeError, "'channels' must be an integer"),
    ((zeros(1, 3, 5, 5), "NCHW", "NHWC"), {"out": zeros(1, 5, 5, 3)[:, ::-1]}, ArgumentError, "'out' must be C-cont"),
    ((zeros(1, 3, 5, 5), "NCHW", "NHWC"), {"out": zeros(1, 5, 5, 4)}, ArgumentError, "'out' must be of shape"),
    ((zeros(1, 3, 5, 5), "NCHW", "NHWC"), {"out": [0.0]}, ArgumentTypeError, "'out' must be a NumPy array"),
]


@pytest.mark.parametrize("arguments, options, error, message", REFUSED)
def test_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        reorder(*arguments, **options)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.arange(2 * 20 * 3 * 5, dtype=torch.float32).reshape(2, 20, 3, 5)
    expected = layouts.from_nchw(x.numpy(), "NCHW16c")
    y = reorder(x, "NCHW", "NCHW16c")
    out = torch.full(y.shape, torch.nan)
    assert type(y) is torch.Tensor and reorder(x, "NCHW", "NCHW16c", out=out) is out
    for found in (y, out):
        np.testing.assert_array_equal(found.numpy(), expected)
    with pytest.raises(ArgumentTypeError, match="'out' must be a tensor in CPU memory"):
        reorder(x, "NCHW", "NCHW16c", out=out.to("meta"))
