"""Presets and configurations: equal to the preprocessing of their packages, within a step of 255."""

from __future__ import annotations

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


def test_clip_is_clips():
    config = {
        "do_resize": True, "size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224, "resample": 3,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    }  # fmt: skip
    picture = random(300, 280, 3)
    ours = [inputs(picture, image, (224, 224)) for image in (Image.clip(), Image.from_config(config))]
    np.testing.assert_allclose(*ours, rtol=0, atol=1e-6)


def test_configurations_that_it_cannot_follow():
    for config in ({}, {"a": 1}, {"image_mean": [0], "size": {"longest_edge": 3}}):
        with pytest.raises(ArgumentError, match="'config' must be"):
            Image.from_config(config)
    with pytest.raises(ArgumentTypeError, match="'config' must be"):
        Image.from_config(3)
    with pytest.raises(ArgumentError, match="crop_mode"):
        Image.from_config({"input_size": (3, 8, 8), "crop_mode": "border", "mean": (0,), "std": (1,)})
    with pytest.raises(ArgumentError, match="one of imagenet, yolo, clip"):
        Image.preset("resnet")
