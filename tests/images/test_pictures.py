"""Pictures as callers pass them: forms, colours, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.images.geometry import Geometry
from cpuconv.images.image import Image
from support.pictures import converter, random

AS_IS = {"scale": 1.0, "resize": "cv2_nearest"}


def pixels(picture, color="RGB", channels=3, shape=(8, 16), **options):
    return converter(shape, Image(color=color, **AS_IS, **options), channels=channels)(picture).array[0]


def test_colours_become_those_of_the_network():
    picture = random(8, 16, 4)
    planes = picture.transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels(picture, "RGBA"), planes[:3])
    np.testing.assert_array_equal(pixels(picture, "BGRA"), planes[2::-1])
    np.testing.assert_array_equal(pixels(picture[:, :, :3], "BGR"), planes[2::-1])
    np.testing.assert_array_equal(pixels(picture[:, :, :3], "BGR", network_color="BGR"), planes[:3])
    np.testing.assert_array_equal(pixels(picture[:, :, 0], "GRAY"), planes[[0, 0, 0]])
    np.testing.assert_array_equal(pixels(picture[:, :, :1], "GRAY", 1), planes[:1])


def test_grey_is_pillows():
    image = pytest.importorskip("PIL.Image")
    picture = random(8, 16, 3)
    grey = np.asarray(image.fromarray(picture).convert("L"))
    np.testing.assert_array_equal(pixels(picture, "RGB", 1)[0], grey)
    np.testing.assert_array_equal(pixels(picture[:, :, ::-1], "BGR", 1)[0], grey)


def test_pillows_images_state_their_colour():
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(random(8, 16, 3))
    for mode in ("RGB", "RGBA", "L", "P", "1", "CMYK", "LA", "YCbCr"):
        given = picture.convert(mode)
        expected = np.asarray(given.convert("RGB")).transpose(2, 0, 1)
        np.testing.assert_array_equal(pixels(given, "BGR"), expected, err_msg=mode)
    with pytest.raises(ArgumentTypeError, match="of 8 bits, not one of Pillow's mode 'F'"):
        pixels(picture.convert("F"))


def test_tensors():
    torch = pytest.importorskip("torch")
    picture = random(3, 8, 16)
    given = torch.from_numpy(picture)
    np.testing.assert_array_equal(pixels(given.permute(1, 2, 0)), picture)
    with pytest.raises(ArgumentError, match=r"a picture \(H, W, 3\).*channels come last"):
        pixels(given)


@pytest.mark.parametrize("size", [(2, 2), (8, 16), (30, 46)], ids=str)
def test_yuv_is_opencvs(size):
    height, width = size
    whole = random(height * 3 // 2, width)
    y, u, v = (each.astype(np.int64) for each in (whole[:height], whole[height:, ::2], whole[height:, 1::2]))
    u, v = (np.repeat(np.repeat(each - 128, 2, 0), 2, 1) for each in (u, v))
    base = np.maximum(y - 16, 0) * 1220542 + (1 << 19)
    planes = np.stack([base + 1673527 * v, base - 409993 * u - 852492 * v, base + 2116026 * u])
    expected = np.clip(planes >> 20, 0, 255)
    np.testing.assert_array_equal(pixels(whole, "NV12", shape=size), expected)
    two = (whole[:height], whole[height:].reshape(height // 2, width // 2, 2))
    np.testing.assert_array_equal(pixels(two, "NV12", shape=size), expected)
    np.testing.assert_array_equal(pixels(whole, "NV12", 1, shape=size)[0], whole[:height])
    if width > 2:
        cv2 = pytest.importorskip("cv2")
        theirs = cv2.cvtColor(whole, cv2.COLOR_YUV2RGB_NV12).transpose(2, 0, 1)
        np.testing.assert_array_equal(pixels(whole, "NV12", shape=size), theirs)
        packed = random(height, width, 2)
        theirs = cv2.cvtColor(packed, cv2.COLOR_YUV2RGB_YUYV).transpose(2, 0, 1)
        np.testing.assert_array_equal(pixels(packed, "YUYV", shape=size), theirs)
        grey = converter(size, Image(color="YUYV", **AS_IS), channels=1)(packed).array[0, 0]
        np.testing.assert_array_equal(grey, packed[:, :, 0])


FAILURES = {
    "float": (np.zeros((8, 8, 3), np.float32), "RGB", ArgumentTypeError, "uint8: .*p \\* 255.*not of float32"),
    "16 bits": (np.zeros((8, 8, 3), np.uint16), "RGB", ArgumentTypeError, "uint8: .*p >> 8.*not of uint16"),
    "int64": (np.zeros((8, 8, 3), np.int64), "RGB", ArgumentTypeError, "a picture of uint8, not of int64"),
    "empty": (np.zeros((0, 8, 3), np.uint8), "RGB", ArgumentError, "1 pixel or more, not an empty one"),
    "alpha": (
        np.zeros((8, 8, 4), np.uint8),
        "RGB",
        ArgumentError,
        r"as color='RGB' states, not \(8, 8, 4\)",
    ),
    "no alpha": (np.zeros((8, 8, 3), np.uint8), "BGRA", ArgumentError, r"\(H, W, 4\) as color='BGRA' states"),
    "grey": (np.zeros((8, 8), np.uint8), "BGR", ArgumentError, r"\(H, W, 3\) as color='BGR' states, not \(8, 8\)"),
    "colours": (np.zeros((8, 8, 3), np.uint8), "GRAY", ArgumentError, r"\(H, W\) as color='GRAY' states"),
    "channels first": (np.zeros((3, 8, 8), np.uint8), "RGB", ArgumentError, "channels come last"),
    "a path": ("photo.jpg", "RGB", ArgumentTypeError, "a picture: an array"),
    "None": (None, "RGB", ArgumentTypeError, "a picture: an array"),
    "no NV12": (np.zeros((8, 8), np.uint8), "NV12", ArgumentError, "3/2 rows"),
    "no planes": ((np.zeros((8, 8), np.uint8),), "NV12", ArgumentError, "two planes"),
    "other planes": ((np.zeros((8, 8), np.uint8),) * 2, "NV12", ArgumentError, "of even sizes"),
    "odd YUYV": (np.zeros((8, 7, 2), np.uint8), "YUYV", ArgumentError, "even width"),
}


@pytest.mark.parametrize("given, color, error, message", FAILURES.values(), ids=FAILURES)
def test_errors_name_the_argument(given, color, error, message):
    with pytest.raises(error, match=message) as found:
        pixels(given, color)
    assert "feed['x']" in str(found.value)


def test_errors_name_the_picture_of_a_list():
    make = converter((8, 8), Image())
    with pytest.raises(ArgumentTypeError, match=r"feed\['x'\]\[1\]' must be a picture of uint8"):
        make([random(4, 4, 3), np.zeros((4, 4, 3))])
    with pytest.raises(ArgumentError, match="of 1 picture or more, not of 0 pictures"):
        make([])
    with pytest.raises(ArgumentError, match="of 2 pictures, not of 1 picture"):
        converter((8, 8), Image(), batch=2)(random(4, 4, 3))


WRONG = {
    "size": ({"size": "fit"}, "'size' must be one of stretch, letterbox"),
    "color": ({"color": "rgb"}, "'color' must be one of RGB, BGR"),
    "resize": ({"resize": "linear"}, "'resize' must be one of cv2_nearest"),
    "mean": ({"mean": "0"}, "'mean' must be a number"),
    "scale": ({"scale": float("nan")}, "'scale' must be finite"),
    "fill": ({"fill": 300}, "'fill' must be numbers from 0 to 255"),
    "shape": ({"shape": 224}, "'shape' must be \\(height, width\\)"),
    "shorter": ({"shorter": 0}, "'shorter' must be an integer"),
}


@pytest.mark.parametrize("options, message", WRONG.values(), ids=WRONG)
def test_wrong_descriptions(options, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        Image(**options)


def test_descriptions_are_plain_values():
    for image in (Image.yolo(), Image.imagenet(shape=(224, 224)), Image.clip(), Image(fill=(1, 2, 3))):
        assert Image.from_dict(image.to_dict()) == image


def test_geometry_maps_back():
    place = Image.yolo().placed((720, 1280), (640, 640))
    assert place == Geometry((720, 1280), (360, 640), (640, 640), 140, 0)
    boxes = np.array([[0, 140, 640, 500], [-5, 100, 320, 320]], np.float32)
    np.testing.assert_allclose(place.boxes(boxes), [[0, 0, 1280, 720], [0, 0, 640, 360]])
    np.testing.assert_allclose(place.boxes(boxes, clip=False)[1], [-10, -80, 640, 360])
    crop = Image.imagenet().placed((375, 500), (224, 224))
    assert crop.resized == (256, 341) and (crop.top, crop.left) == (-16, -58)
    np.testing.assert_allclose(crop.points([[-58.0, -16.0], [283, 240]]), [[0, 0], [500, 375]], rtol=1e-6)
