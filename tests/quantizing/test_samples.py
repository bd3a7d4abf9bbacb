"""Samples of every kind: batches that the network states, and images however its input lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.errors import ArgumentError
from cpuconv.network.ports import Port
from cpuconv.quantizing.data.batches import batches
from cpuconv.quantizing.data.images import ImageForm
from cpuconv.quantizing.data.samples import samples_of
from support.graph.floats import run_all, with_weights
from support.graphs import parse

FLOAT = np.dtype(np.float32)


def rows(samples) -> list[list[float]]:
    """The first number of every row, by feed."""
    return [feed["x"][:, 0].tolist() for feed in samples]


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), size=st.integers(1, 12))
def test_every_row_is_in_a_batch_once_and_the_first_ones_fill_the_last(counts, size):
    found = batches(counts, size)
    taken = [[(part.at, row) for part in batch for row in range(part.first, part.stop)] for batch in found]
    assert all(len(batch) == size for batch in taken)
    every = [(at, row) for at, count in enumerate(counts) for row in range(count)]
    in_turn = [place for batch in taken for place in batch]
    assert in_turn == [every[at % len(every)] for at in range(len(in_turn))]
    assert 0 <= len(in_turn) - len(every) < size
    for batch in found:
        assert all(part.stop - part.first > 0 for part in batch)


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=5), size=st.integers(1, 6))
def test_feeds_are_joined_and_cut_until_they_fill_the_batch(counts, size):
    ports = [Port("x", (size, 2), FLOAT), Port("z", (size, 1), np.dtype(np.int64))]
    whole = np.arange(sum(counts), dtype=np.float32)
    parts = np.split(whole, np.cumsum(counts)[:-1])
    data = [{"x": np.stack([part, -part], 1), "z": part[:, None].astype(np.int64)} for part in parts]
    samples = samples_of(data, ports, ImageForm())
    expected = np.resize(whole, (-(-len(whole) // size), size)).tolist()
    assert len(samples) == len(expected) and rows(samples) == rows(samples) == expected
    assert rows(samples.first(1)) == expected[:1]
    for feed in samples:
        assert {name: array.dtype for name, array in feed.items()} == {"x": np.float32, "z": np.int64}
        np.testing.assert_array_equal(feed["z"][:, 0], feed["x"][:, 0])
        np.testing.assert_array_equal(feed["x"][:, 1], -feed["x"][:, 0])


def test_feeds_that_fit_are_taken_as_they_are():
    array = np.zeros((4, 2), np.float32)
    for size in (4, "N", None):
        (feed,) = samples_of([array], [Port("x", (size, 2), FLOAT)], ImageForm())
        assert feed["x"] is array


WRONG = {
    "sizes": ([{"x": np.zeros((1, 3), np.float32)}], r"data\[0\].*fits float32\[\?,2\], not \(1, 3\)"),
    "second": ([np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)], r"data\[1\].*fits float32\[\?,2\]"),
    "no rows": ([np.zeros((0, 2), np.float32)], r"data\[0\]: .*rows, 1 or more"),
}


@pytest.mark.parametrize("data, text", WRONG.values(), ids=WRONG)
def test_what_no_batch_can_be_made_of_is_named(data, text):
    with pytest.raises(ArgumentError, match=text):
        samples_of(data, [Port("x", (4, 2), FLOAT)], ImageForm())


def test_arrays_of_unequal_rows_are_named():
    ports = [Port("x", (4, 2), FLOAT), Port("z", (4, 2), FLOAT)]
    data = [{"x": np.zeros((2, 2), np.float32), "z": np.zeros((3, 2), np.float32)}]
    with pytest.raises(ArgumentError, match=r"data\[0\]: .*one number of rows.*'x': 2, 'z': 3"):
        samples_of(data, ports, ImageForm())


@pytest.fixture
def pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder, rng = tmp_path / "pictures", np.random.default_rng(0)
    folder.mkdir()
    for at in range(5):
        image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(folder / f"{at}.png")
    return folder


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("batch", [1, 2, 8, "N"])
def test_images_are_those_of_an_input_with_channels_second(channels, dtype, batch, pictures):
    first, last = (batch, channels, 12, 16), (batch, 12, 16, channels)
    planes, pixels = (
        list(samples_of(pictures, [Port("x", shape, np.dtype(dtype))], ImageForm())) for shape in (first, last)
    )
    each = batch if isinstance(batch, int) else 1
    assert len(planes) == len(pixels) == -(-5 // each)
    for one, other in zip(planes, pixels, strict=True):
        assert one["x"].shape == (each, channels, 12, 16) and one["x"].dtype == other["x"].dtype == dtype
        np.testing.assert_array_equal(other["x"], one["x"].transpose(0, 2, 3, 1))
    inputs = [row for feed in planes for row in feed["x"]]
    assert all((inputs[at] == inputs[at % 5]).all() for at in range(len(inputs)))
    assert len({row.tobytes() for row in inputs[:5]}) == 5


@pytest.mark.parametrize("shape", [(1, 2, 12, 12), (1, 12, 12), (1, "H", 12, 3), (1, 3, "H", 12)], ids=str)
def test_inputs_of_no_images_are_named(shape, pictures):
    with pytest.raises(ArgumentError, match=r"\(N, 1 or 3, H, W\) or \(N, H, W, 1 or 3\), sizes stated"):
        samples_of(pictures, [Port("x", shape, FLOAT)], ImageForm())


CHANNELS_LAST = (
    """g (float[2,12,12,3] x) => (float[2,6] y) {
    t = Transpose<perm=[0,3,1,2]>(x)
    a = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(t, w1, b1)
    r = Relu(a)
    c = Conv<auto_pad="SAME_UPPER", group=8>(r, w2, b2)
    s = Clip(c, zero, six)
    e = Conv(s, w3)
    u = Transpose<perm=[0,2,3,1]>(e)
    m = ReduceMean<axes=[1,2], keepdims=0>(u)
    n = MatMul(m, w4)
    y = Add(n, b4)
}""",
    {
        "w1": (8, 3, 3, 3),
        "b1": (8,),
        "w2": (8, 1, 3, 3),
        "b2": (8,),
        "w3": (10, 8, 1, 1),
        "w4": (10, 6),
        "b4": (6,),
    },
)


def test_networks_of_fixed_batches_and_channels_last_are_quantised_by_images(pictures, tmp_path):
    """As exporters of TensorFlow write them: transposed first, and biases of matrices added."""
    source = with_weights(parse(CHANNELS_LAST[0], 13), CHANNELS_LAST[1])
    made = cpuconv.quantize(source, pictures, output=tmp_path / "q.onnx", threads=1, refuse_slower=False)
    assert len(made.layers) == 4 and not made.kept
    model = cpuconv.compile(tmp_path / "q.onnx", threads=1)
    import onnx

    written = onnx.load(tmp_path / "q.onnx")
    for feed in samples_of(pictures, [Port("x", (2, 12, 12, 3), FLOAT)], ImageForm()):
        exact, theirs = (run_all(each, feed)["y"] for each in (source, written))
        ours = model.run(feed)["y"]
        assert np.linalg.norm(ours - exact) < 0.05 * np.linalg.norm(exact)
        assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(exact)
    left = {row["op"] for row in model.explain().to_dict()["operators"]}
    assert not left & {"Conv", "MatMul", "Linear", "Gemm"}, left
