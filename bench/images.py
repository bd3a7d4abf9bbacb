"""Measure pictures to inputs, and to answers, against other libraries: `python -m bench.images --help`.

Two cases: a frame of 1280x720 in a letterbox of 640, and a picture of 500x375 whose centre of 224 is taken after a
resize to 256. All ways get the same picture, in turns of four calls in this process, the first untimed; those with a
network start ONNX Runtime or OpenVINO with as many threads. Packages that are missing are left out.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

import cpuconv
from bench import options
from bench.settings import machine_name
from cpuconv.images.preprocessing import Converter, ImagePort

Way = Callable[[np.ndarray], Any]
OURS = "cpuconv"
_TIMED = 3  # timed calls per turn
_MEAN, _STD = (np.array(each) * 255 for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


class Case(NamedTuple):
    """A picture's size, the resized one's, the input's, and how cpuconv is told; `pad` or crop around the picture."""

    name: str
    picture: tuple[int, int]
    resized: tuple[int, int]
    shape: tuple[int, int]
    image: cpuconv.Image
    bgr: bool
    mean: np.ndarray
    std: np.ndarray

    @property
    def corner(self) -> tuple[int, int]:
        """Top and left of the resized picture in the input."""
        place = self.image.placed(self.picture, self.shape)
        return place.top, place.left


CASES = {
    "letterbox": Case(
        "1280x720 to 640, letterbox", (720, 1280), (360, 640), (640, 640), cpuconv.Image.yolo(), True, np.zeros(3),
        np.full(3, 255.0),
    ),
    "crop": Case(
        "500x375 to 224, crop", (375, 500), (256, 341), (224, 224),
        cpuconv.Image.imagenet(resize="cv2_linear"), False, _MEAN, _STD,
    ),
    "crop_pillow": Case(
        "500x375 to 224, crop, Pillow's resize", (375, 500), (256, 341), (224, 224), cpuconv.Image.imagenet(), False,
        _MEAN, _STD,
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table per number of threads."""
    p = options.parser("images", __doc__, "--threads", "--rounds", "--json", threads=(1,), rounds=60)
    for name in ("letterbox", "crop"):
        p.add_argument(f"--{name}", type=Path, metavar="MODEL", help=f"ONNX file for whole runs of the case {name}")
    args = p.parse_args(argv)
    rows = []
    for threads in args.threads:
        for key, case in CASES.items():
            rows += timed(case, "input", {**inputs(case, threads)}, threads, args.rounds)
            model = getattr(args, key.partition("_")[0])
            if model is not None:
                rows += timed(case, model.stem, answers(case, model, threads), threads, max(10, args.rounds // 3))
    heads = ("case", "to", "threads", "way", "best, ms", "median, ms", "× cpuconv")
    print(tabulate([list(row.values()) for row in rows], heads, disable_numparse=True))
    options.write_json(args.json, {"cpu": machine_name(), "rows": rows})
    return 0


def timed(case: Case, goal: str, ways: dict[str, Way], threads: int, rounds: int) -> list[dict[str, Any]]:
    """Times of ways in turns, after runs whose results are compared with cpuconv's."""
    picture = np.random.default_rng(0).integers(0, 256, (*case.picture, 3), dtype=np.uint8)
    expected = np.array(ways[OURS](picture))
    found: dict[str, list[float]] = {}
    for name, way in ways.items():
        away = float(np.abs(np.asarray(way(picture)) - expected).max())
        print(f"{case.name}, {goal}: {name} differs by {away:.2g}", file=sys.stderr)
        found[name] = []
    order, draw = [*ways.items()], random.Random(0)
    for _ in range(rounds):
        draw.shuffle(order)
        for name, way in order:
            way(picture)  # untimed: the threads of the way before may still spin, and caches hold its data
            for _ in range(_TIMED):
                begun = time.perf_counter()
                way(picture)
                found[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(times) for name, times in found.items()}
    return [
        {
            "case": case.name, "to": goal, "threads": str(threads), "way": name,
            "best": f"{min(times) * 1e3:.3f}", "median": f"{medians[name] * 1e3:.3f}",
            "ratio": f"{medians[name] / medians[OURS]:.2f}",
        }
        for name, times in found.items()
    ]  # fmt: skip


def inputs(case: Case, threads: int) -> dict[str, Way]:
    """Ways from a picture to an array (1, 3, H, W) of float32."""
    from cpuconv.elements import F32

    convert = Converter(ImagePort("x", 1, 3, case.shape, False, F32), case.image, threads)

    def ours(picture: np.ndarray) -> np.ndarray:
        prepared = convert(picture)
        convert.release(prepared)
        return prepared.array

    ways: dict[str, Way] = {OURS: ours}
    if case.image.resize.startswith("pillow"):
        if _has("PIL"):
            ways["Pillow + NumPy"] = lambda picture: _normalised(case, _by_pillow(case, picture))
    elif _has("cv2"):
        import cv2

        cv2.setNumThreads(threads)
        ways["OpenCV + NumPy"] = lambda picture: _normalised(case, _by_cv2(case, picture))
        ways["OpenCV, blobFromImage"] = lambda picture: _blob(case, _by_cv2(case, picture))
    if _has("openvino"):
        ways["OpenVINO, PrePostProcessor"] = _openvino(case, None, threads)
    return ways


def answers(case: Case, file: Path, threads: int) -> dict[str, Way]:
    """Ways from a picture to the first output of a network."""
    model = cpuconv.compile(file, threads=threads)
    model.with_images({model.inputs[0].name: case.image})
    ways: dict[str, Way] = {OURS: lambda picture: next(iter(model.run({model.inputs[0].name: picture}).values()))}
    made = {name: way for name, way in inputs(case, threads).items() if "OpenVINO" not in name and name != OURS}
    if _has("onnxruntime"):
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        for before, way in made.items():
            ways[f"{before} + ONNX Runtime"] = _followed(way, lambda x: session.run(None, {name: x})[0])
    if _has("openvino"):
        ways["OpenVINO, PrePostProcessor"] = _openvino(case, file, threads)
    return ways


def _followed(way: Way, network: Way) -> Way:
    return lambda picture: network(way(picture))


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _by_cv2(case: Case, picture: np.ndarray) -> np.ndarray:
    import cv2

    pixels = cv2.resize(picture, case.resized[::-1], interpolation=cv2.INTER_LINEAR)
    (top, left), (height, width) = case.corner, case.shape
    if top < 0 or left < 0:
        return pixels[-top : height - top, -left : width - left]
    below, right = height - top - case.resized[0], width - left - case.resized[1]
    return cv2.copyMakeBorder(pixels, top, below, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114))


def _by_pillow(case: Case, picture: np.ndarray) -> np.ndarray:
    from PIL import Image

    (top, left), (height, width) = case.corner, case.shape
    resized = Image.fromarray(picture).resize(case.resized[::-1], Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((-left, -top, width - left, height - top)))


def _normalised(case: Case, pixels: np.ndarray) -> np.ndarray:
    pixels = pixels[..., ::-1] if case.bgr else pixels
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1)[None]).astype(np.float32)
    if case.mean.any():
        planes -= case.mean.astype(np.float32)[:, None, None]
    planes *= (1 / case.std).astype(np.float32)[:, None, None]
    return planes


def _blob(case: Case, pixels: np.ndarray) -> Any:
    """OpenCV's own conversion, in one call where one scale serves all channels."""
    import cv2

    blob: Any = cv2.dnn.blobFromImage(pixels, 1 / 255, mean=tuple(case.mean), swapRB=case.bgr)
    if case.mean.any():
        blob *= (255 / case.std).astype(np.float32)[:, None, None]
    return blob


def _openvino(case: Case, file: Path | None, threads: int) -> Way:
    import openvino as ov
    from openvino.preprocess import ColorFormat, PrePostProcessor, ResizeAlgorithm

    core, (top, left), (height, width) = ov.Core(), case.corner, case.shape
    if file is None:
        x = ov.opset13.parameter([1, 3, *case.shape], np.float32, name="x")
        model = ov.Model([ov.opset13.result(ov.opset13.convert(x, "f32"))], [x], "input")
    else:
        model = core.read_model(file)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    ppp.input().tensor().set_shape([1, *case.picture, 3])
    ppp.input().tensor().set_color_format(ColorFormat.BGR if case.bgr else ColorFormat.RGB)
    steps = ppp.input().preprocess()
    method = ResizeAlgorithm.RESIZE_LINEAR
    if case.image.resize.startswith("pillow"):
        method = ResizeAlgorithm.RESIZE_BILINEAR_PILLOW
    steps.resize(method, *case.resized)
    if top < 0 or left < 0:
        steps.crop([0, -top, -left, 0], [1, height - top, width - left, 3])
    steps.convert_element_type(ov.Type.f32)
    if case.bgr:
        steps.convert_color(ColorFormat.RGB)
    if top > 0 or left > 0:
        below, right = height - top - case.resized[0], width - left - case.resized[1]
        steps.pad([0, top, left, 0], [0, below, right, 0], 114.0, ov.preprocess.PaddingMode.CONSTANT)
    steps.mean(list(map(float, case.mean))).scale(list(map(float, case.std)))
    ppp.input().model().set_layout(ov.Layout("NCHW"))
    options_ = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(ppp.build(), "CPU", options_).create_infer_request()
    return lambda picture: next(iter(request.infer([picture[None]], share_inputs=True, share_outputs=True).values()))


if __name__ == "__main__":
    sys.exit(main())
