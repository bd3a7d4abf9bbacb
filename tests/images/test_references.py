"""Presets and configurations: equal to the preprocessing of their packages, within a step of 255."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.images.image import Image
from support.pictures import converter, random

SIZES = [(720, 1280), (375, 500), (501, 334), (224, 224), (97, 31), (17, 1000)]
STEP = 1.001 / 255


def inputs(picture, image, shape):
    return converter(shape, image)(picture).array[0]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_letterbox_of_ultralytics(size):
    augment = pytest.importorskip("ultralytics.data.augment")
    picture = random(*size, 3)
    theirs = augment.LetterBox((640, 640), auto=False)(image=picture)
    theirs = np.ascontiguousarray(theirs[..., ::-1].transpose(2, 0, 1)).astype(np.float32) / 255
    for image in (Image.yolo(), Image.from_config({"task": "detect", "imgsz": "[640, 640]"})):
        ours = inputs(picture, image, (640, 640))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_boxes_of_ultralytics(size):
    ops = pytest.importorskip("ultralytics.utils.ops")
    boxes = np.array([[10, 200, 300, 400], [0, 0, 640, 640.0]], np.float32)
    place = Image.yolo().placed(size, (640, 640))
    theirs = ops.scale_boxes((640, 640), boxes.copy(), size)
    np.testing.assert_allclose(place.boxes(boxes), theirs, atol=0.02 * max(size))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_transforms_of_torchvision(size):
    transforms, image = pytest.importorskip("torchvision.transforms"), pytest.importorskip("PIL.Image")
    picture = random(*size, 3)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    theirs = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )(image.fromarray(picture)).numpy()
    np.testing.assert_allclose(inputs(picture, Image.imagenet(), (224, 224)), theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["resnet50.a1_in1k", "vit_base_patch16_clip_224.openai", "convnext_tiny.fb_in1k"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_transforms_of_timm(name, size):
    timm, image = pytest.importorskip("timm"), pytest.importorskip("PIL.Image")
    from timm.data import create_transform, resolve_data_config

    config = resolve_data_config(timm.get_pretrained_cfg(name).to_dict())
    picture = random(*size, 3)
    theirs = create_transform(**config, is_training=False)(image.fromarray(picture)).numpy()
    ours = inputs(picture, Image.from_config(config), config["input_size"][1:])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6)


def test_processors_of_transformers():
    transformers, image = pytest.importorskip("transformers"), pytest.importorskip("PIL.Image")
    picture = random(375, 500, 3)
    for make in (transformers.CLIPImageProcessor, transformers.ViTImageProcessor):
        processor = make()
        theirs = np.asarray(processor(image.fromarray(picture), return_tensors="np")["pixel_values"][0])
        chosen = Image.from_config(processor)
        ours = inputs(picture, chosen, chosen.shape or (224, 224))
        step = np.max(np.atleast_1d(chosen.scale)) * 1.001
        assert np.abs(ours - theirs).max() <= step, make.__name__


@pytest.mark.parametrize("size", [(60, 200), (31, 500), (48, 100)], ids=str)
def test_lines_of_rapidocr(size):
    detection = pytest.importorskip("rapidocr_onnxruntime.ch_ppocr_det.utils")
    from rapidocr_onnxruntime.ch_ppocr_cls.text_cls import TextClassifier
    from rapidocr_onnxruntime.ch_ppocr_rec.text_recognize import TextRecognizer

    picture = random(*size, 3)
    numbers: dict = {"color": "BGR", "network_color": "BGR", "mean": 127.5, "scale": 1 / 127.5}
    theirs = detection.DetPreProcess(64, "min")(picture)[0]
    np.testing.assert_allclose(inputs(picture, Image(**numbers), theirs.shape[1:]), theirs, rtol=0, atol=1e-6)
    line = Image("line", fill=127.5, **numbers)
    owner = SimpleNamespace(rec_image_shape=(3, 48, 320), cls_image_shape=(3, 48, 192))
    theirs = TextRecognizer.resize_norm_img(owner, picture, 320 / 48)
    np.testing.assert_allclose(inputs(picture, line, (48, 320)), theirs, rtol=0, atol=1e-6)
    theirs = TextClassifier.resize_norm_img(owner, picture)
    np.testing.assert_allclose(inputs(picture, line, (48, 192)), theirs, rtol=0, atol=1e-6)


HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}
CONFIGS = {
    "timm": (
        {"input_size": (3, 32, 48), "interpolation": "bicubic", "crop_pct": 0.9, "mean": (0.5,) * 3, "std": (0.5,) * 3},
        Image("crop", shorter=35, shape=(32, 48), resize="pillow_bicubic", mean=(127.5,) * 3, scale=(1 / 127.5,) * 3),
    ),
    "vit": (
        {**HALF, "size": {"height": 32, "width": 48}},
        Image("stretch", shape=(32, 48), resize="pillow_bicubic", mean=(127.5,) * 3, scale=(1 / 127.5,) * 3),
    ),
    "convnext": (
        {**HALF, "size": {"shortest_edge": 224}, "crop_pct": 0.875, "do_flip_channel_order": True},
        Image("crop", shorter=256, shape=(224, 224), resize="pillow_bicubic", mean=(127.5,) * 3,
              scale=(1 / 127.5,) * 3, network_color="BGR"),
    ),
    "no mean": (
        {"do_rescale": True, "do_normalize": False, "size": 20, "do_center_crop": True, "crop_size": 16},
        Image("crop", shorter=20, shape=(16, 16), resize="pillow_bilinear"),
    ),
    "ultralytics": ({"task": "detect", "imgsz": "[32, 48]"}, Image.yolo(shape=(32, 48))),
    "its classifier": (
        {"task": "classify", "imgsz": 32}, Image("crop", color="BGR", shape=(32, 32), resize="pillow_bilinear"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("config, expected", CONFIGS.values(), ids=CONFIGS)
def test_configurations(config, expected):
    made = Image.from_config(config)
    for name, value in expected.to_dict().items():
        assert getattr(made, name) == (pytest.approx(value) if name in ("mean", "scale") else getattr(expected, name))


def test_clip_is_clips():
    config = {
        "do_resize": True, "size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224, "resample": 3,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    }  # fmt: skip
    picture = random(300, 280, 3)
    ours = [inputs(picture, image, (224, 224)) for image in (Image.clip(), Image.from_config(config))]
    np.testing.assert_allclose(*ours, rtol=0, atol=1e-6)


def test_configurations_that_it_cannot_follow():
    other = [
        {"do_pad": True},
        {"crop_pct": 0.9, "do_center_crop": True},
        {"image_processor_type": "PPOCR"},
        {"size": {}},
    ]
    odd = [{"size": {"height": 3}}, {"size": {"shortest_edge": 8}, "do_center_crop": True, "crop_size": [3]}]
    for config in (
        {},
        {"a": 1},
        {"imgsz": "["},
        *({"image_mean": [0], "image_std": [1], **each} for each in other + odd),
    ):
        with pytest.raises(ArgumentError, match="'config' must be"):
            Image.from_config(config)
    with pytest.raises(ArgumentTypeError, match="'config' must be"):
        Image.from_config(3)
    with pytest.raises(ArgumentError, match="crop_mode"):
        Image.from_config({"input_size": (3, 8, 8), "crop_mode": "border", "mean": (0,), "std": (1,)})
    with pytest.raises(ArgumentError, match="one of imagenet, yolo, clip"):
        Image.preset("resnet")
