"""Resizes: equal to Pillow's and OpenCV's, and near to exact numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.elements import BF16, F16, F32, U8
from cpuconv.images.image import Image
from cpuconv.images.methods import METHODS
from support import guarded, pictures
from support.pictures import SIZES, converter, exact, random, resized

PILLOW = [name for name in METHODS if name.startswith("pillow")]
CV2 = {
    "cv2_nearest": "INTER_NEAREST",
    "cv2_linear": "INTER_LINEAR",
    "cv2_cubic": "INTER_CUBIC",
    "cv2_area": "INTER_AREA",
}
ROUNDED_ALIKE = ("cv2_nearest", "cv2_linear")
PASSES = {"pillow": 1.5, "cv2": 1.0}  # steps from exact numbers: two roundings to uint8, and one with more bits


def pillow_resize(picture, shape, method):
    image = pytest.importorskip("PIL.Image")
    made = image.fromarray(picture).resize(shape[::-1], image.Resampling[method.partition("_")[2].upper()])
    return np.asarray(made).reshape(*shape, -1)


def pillow_version():
    return int(pytest.importorskip("PIL").__version__.partition(".")[0])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("method", PILLOW)
def test_equal_to_pillow(method, sizes):
    from cpuconv.images.methods import columns_first

    if pillow_version() < 13 and columns_first(method, sizes[:2], sizes[2:]):
        pytest.skip("older versions of Pillow sum rows first")
    picture = random(*sizes[:2], 3)
    np.testing.assert_array_equal(resized(picture, sizes[2:], method), pillow_resize(picture, sizes[2:], method))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("method", CV2)
def test_equal_to_opencv(method, sizes, channels):
    cv2 = pytest.importorskip("cv2")
    picture = random(*sizes[:2], channels)
    theirs = cv2.resize(picture, sizes[:1:-1], interpolation=getattr(cv2, CV2[method])).reshape(*sizes[2:], channels)
    away = np.abs(resized(picture, sizes[2:], method) - theirs)
    assert away.max() <= (0 if method in ROUNDED_ALIKE else 1)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_near_exact_numbers(method, sizes):
    if method == "cv2_area" and (sizes[0] < sizes[2] or sizes[1] < sizes[3]):
        pytest.skip("linear where an axis grows")
    picture = random(*sizes[:2], 3)
    away = np.abs(resized(picture, sizes[2:], method) - exact(picture, sizes[2:], method))
    bound = PASSES[method.partition("_")[0]] if not method.endswith("nearest") else 0
    # a filter of large negative weights amplifies what the first pass rounds and clips
    assert away.max() <= bound or method.endswith(("bicubic", "lanczos")) and np.quantile(away, 0.5) <= bound


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(*[st.integers(1, 70)] * 4),
    method=st.sampled_from(["cv2_linear", "cv2_area", "pillow_bilinear", "pillow_lanczos", "pillow_nearest"]),
    color=st.sampled_from(["RGB", "BGR", "RGBA", "BGRA", "GRAY"]),
    element=st.sampled_from([F32, F16, BF16, U8]),
    last=st.booleans(),
    channels=st.sampled_from([1, 3]),
    way=st.sampled_from(["stretch", "letterbox", "crop", "keep"]),
    threads=st.sampled_from([1, 2]),
    edge=st.sampled_from(guarded.EDGES),
    flip=st.tuples(st.booleans(), st.booleans()),
)
def test_any_form(size, method, color, element, last, channels, way, threads, edge, flip):
    """Any size, colour, strides, element type and layout: as resized by itself, placed and normalised in NumPy."""
    height, width, high, wide = size
    image = Image(way, color, mean=(7.0,) * channels, scale=0.5 if element != U8 else 1.0, fill=9, resize=method)
    whole = random(height, width, {"GRAY": 1}.get(color, len(color)))
    picture = guarded.place(whole, edge)[:: -1 if flip[0] else 1, :: -1 if flip[1] else 1]
    made = converter((high, wide), image, channels=channels, last=last, element=element, threads=threads)(picture)
    place, array = made.geometry[0], made.array[0]
    assert array.dtype == element.outside and place.shape == (high, wide)

    if channels == 1 and color != "GRAY":
        rgb = [picture[:, :, color.index(each)].astype(np.int64) for each in "RGB"]
        planes = [(19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + (1 << 15)) >> 16]
    else:
        planes = [picture[:, :, 0 if color == "GRAY" else color.index(each)] for each in "RGB"[:channels]]
    expected = np.full((channels, high, wide), 9.0)
    for plane, target in zip(planes, expected, strict=True):
        pixels = resized(np.ascontiguousarray(plane, np.uint8), place.resized, method)[:, :, 0]
        top, left = place.top, place.left
        inner = pixels[max(0, -top) :, max(0, -left) :][: high - max(0, top), : wide - max(0, left)]
        target[max(0, top) :, max(0, left) :][: inner.shape[0], : inner.shape[1]] = inner
    if channels == 1 and color != "GRAY" and method.startswith("pillow") and method != "pillow_nearest":
        return  # grey is made before the resize, whose passes are in the order of rows first
    expected = (expected - 7) * (0.5 if element != U8 else 1.0)
    expected = np.clip(expected, 0, None) if element == U8 else expected
    actual = array.astype(np.float64)
    np.testing.assert_array_equal(actual.transpose(2, 0, 1) if last else actual, expected.astype(element.outside))


def test_strided_pictures_are_equal():
    picture = random(37, 53, 3)
    make = converter((20, 30), Image(resize="pillow_bilinear"))
    expected = make(picture).array
    forms = {
        "transposed": np.ascontiguousarray(picture.transpose(2, 0, 1)).transpose(1, 2, 0),
        "columns first": np.asfortranarray(picture),
        "with gaps": np.repeat(np.repeat(picture, 2, 0), 2, 1)[::2, ::2],
        "rows apart": np.pad(picture, ((0, 0), (0, 9), (0, 0)))[:, :53],
        "twice reversed": np.ascontiguousarray(picture[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
        "read-only": picture.copy(),
    }
    forms["read-only"].flags.writeable = False
    for name, form in forms.items():
        np.testing.assert_array_equal(make(form).array, expected, err_msg=name)
    swapped = converter((20, 30), Image(resize="pillow_bilinear", color="BGR"))
    np.testing.assert_array_equal(swapped(picture[:, :, ::-1]).array, expected)
    np.testing.assert_array_equal(swapped(np.ascontiguousarray(picture[:, :, ::-1])).array, expected)


def test_threads_and_batches_give_equal_bits():
    listed = [random(300 + 17 * at, 200 + 31 * at, 3, seed=at) for at in range(3)]
    for image in (Image.yolo(), Image.imagenet(), Image(resize="pillow_lanczos")):
        one, two = (converter((160, 224), image, threads=threads) for threads in (1, 2))
        whole = two(listed)
        assert whole.array.shape == (3, 3, 160, 224) and len(whole.geometry) == 3
        for at, picture in enumerate(listed):
            np.testing.assert_array_equal(whole.array[at], one(picture).array[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_borders_are_filled_where_they_changed(threads):
    image = Image.yolo(fill=(1, 2, 3))
    make = converter((60, 80), image, threads=threads)
    alone, pairs = [[(30, 80)], [(30, 80)], [(60, 40)]], [[(60, 40), (15, 40)], [(15, 40), (60, 40)]]
    for seed, sizes in enumerate([*alone, *pairs, *alone]):
        listed = [random(*size, 3, seed=seed) for size in sizes]
        made = make(listed)
        np.testing.assert_array_equal(made.array, converter((60, 80), image)(listed).array)
        make.release(made)


def test_random_sizes_keep_memory_level():
    make, rng = converter((32, 48), Image.yolo()), np.random.default_rng(0)
    sizes = rng.integers(1, 300, (400, 2))
    for height, width in sizes:
        made = make(pictures.random(int(height), int(width), 3))
        make.release(made)
    assert make.nbytes <= 4 * (32 * 48 * 3 * 4) + 16 * (1 << 21)
    assert len(make._programs) <= 16 and len(make._buffers) == 1


def test_types_round_as_numpy_does():
    picture = random(40, 50, 3)
    image = Image(mean=(1.5, 2.5, 3.5), scale=(0.1, 0.2, 0.3))
    expected = converter((20, 20), image)(picture).array
    for element in (F16, BF16):
        made = converter((20, 20), image, element=element)(picture).array
        np.testing.assert_array_equal(made, expected.astype(element.outside))
