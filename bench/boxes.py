"""Compare the boxes of a quantised detector with those of float32: `python -m bench.boxes --help`.

The detector's output is (1, 4 + classes, boxes): centres, sizes, and the score of each class, as YOLO8 to YOLO26 give
it before boxes are selected. It is quantised by `cpuconv.quantize` with and without a tolerance, by precision="auto",
by ONNX Runtime's static quantisation (QDQ), and by nncf for OpenVINO if it is installed. *found* is the share of the
boxes with the highest scores in float32 that have a box with the same highest class and an overlap (intersection over
union) of 0.5 or more; *overlap* is the mean of the largest overlaps. *score* is the relative RMS error of all scores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tabulate import tabulate

import cpuconv
from bench import options
from bench.networks import SETS, Network, networks
from bench.networks.quantized import quantized
from bench.peers.base import missing
from bench.peers.onnxruntime_peer import OnnxRuntimePeer

DETECTOR = "yolo26n"
FOUND = 0.5  # overlap from which a box counts as found
FIRST_SAMPLE = 1001  # seeds of samples for calibration; inputs that are compared have seeds from 1
Feed = dict[str, np.ndarray]
Run = Callable[[Feed], np.ndarray]


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each way of quantisation; return 1 if one failed."""
    args = parser().parse_args(argv)
    network, path = networks(SETS[1])[args.network], args.folder / f"{args.network}.onnx"
    samples = [network.feed(network.inputs, FIRST_SAMPLE + at) for at in range(args.samples)]
    feeds = [network.feed(network.inputs, 1 + at) for at in range(args.feeds)]
    exact = [onnxruntime(path)(feed) for feed in feeds]
    found: dict[str, dict[str, float]] = {}
    failed = False
    with tempfile.TemporaryDirectory(prefix="bench-boxes-") as folder:
        for name in options.words(args.ways, WAYS, "--ways"):
            try:
                run = WAYS[name](network, path, samples, Path(folder))
            except Exception as error:  # any exception of an engine becomes a message
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = not isinstance(error, ModuleNotFoundError)
                continue
            found[name] = compared(exact, [run(feed) for feed in feeds], args.top)
    heads = ("way", f"found of {args.top}", "overlap", "score")
    rows = [
        (name, f"{each['found']:.1%}", f"{each['overlap']:.3f}", f"{each['score']:.1e}") for name, each in found.items()
    ]
    print(tabulate(rows, heads, disable_numparse=True))
    options.write_json(args.json, found)
    return int(failed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("boxes", __doc__, "folder", "--json")
    p.add_argument("--network", default=DETECTOR, help="network of the set 2026 (%(default)s)")
    p.add_argument("--ways", default=",".join(WAYS), help="comma-separated (%(default)s); auto takes minutes")
    p.add_argument("--samples", type=options.positive, default=16, help="samples for calibration (%(default)s)")
    p.add_argument("--feeds", type=options.positive, default=4, help="inputs that are compared (%(default)s)")
    p.add_argument("--top", type=options.positive, default=100, help="boxes with the highest scores (%(default)s)")
    return p


def by_quantize(
    network: Network, path: Path, samples: Sequence[Feed], folder: Path, tolerance: float | None = None
) -> Run:
    """Quantise with `cpuconv.quantize`, all layers or within a tolerance."""
    made = folder / "cpuconv.onnx"
    print(cpuconv.quantize(path, samples, output=made, tolerance=tolerance, refuse_slower=False), file=sys.stderr)
    return by_model(cpuconv.compile(made))


def by_auto(network: Network, path: Path, samples: Sequence[Feed], folder: Path) -> Run:
    """Let precision="auto" select the types, within an error of 1%."""
    return by_model(cpuconv.compile(path, precision="auto", samples=samples))


def by_onnxruntime(network: Network, path: Path, samples: Sequence[Feed], folder: Path) -> Run:
    """Quantise all layers with ONNX Runtime's static quantisation."""
    return onnxruntime(quantized(network, path))


def by_nncf(network: Network, path: Path, samples: Sequence[Feed], folder: Path) -> Run:
    """Quantise with nncf for OpenVINO."""
    if reason := missing("nncf"):
        raise ModuleNotFoundError(f"{reason}: pip install nncf")
    import nncf
    import openvino

    core = openvino.Core()
    made = nncf.quantize(core.read_model(path), nncf.Dataset(list(samples)))
    compiled = core.compile_model(made, "CPU")
    return lambda feed: np.array(compiled(feed)[0])


def by_model(model: cpuconv.Model) -> Run:
    """Return a function that runs a model and returns its first output."""
    return lambda feed: next(iter(model.run(feed).values()))


def onnxruntime(path: Path) -> Run:
    """Return a function that runs a file with ONNX Runtime."""

    def run(feed: Feed) -> np.ndarray:
        form = OnnxRuntimePeer().network(path, feed, 1)[0]
        form.run()
        return np.array(form.output()[0])

    return run


WAYS: Mapping[str, Callable[[Network, Path, Sequence[Feed], Path], Run]] = {
    "quantize": by_quantize,
    "quantize 1%": partial(by_quantize, tolerance=0.01),
    "auto": by_auto,
    "onnxruntime": by_onnxruntime,
    "nncf": by_nncf,
}


def compared(exact: Sequence[np.ndarray], given: Sequence[np.ndarray], top: int) -> dict[str, float]:
    """Compare outputs (1, 4 + classes, boxes): share of boxes found, mean overlap, relative RMS error of the scores."""
    overlaps = []
    for right, got in zip(exact, given, strict=True):
        wanted, kinds = boxes_of(right[0])
        first = np.argsort(-np.where((right[0][2:4] > 0).all(0), right[0][4:].max(0), 0), kind="stable")[:top]
        boxes, others = boxes_of(got[0])
        overlaps.append((overlap_of(wanted[first], boxes) * (kinds[first, None] == others)).max(1, initial=0))
    best = np.concatenate(overlaps)
    score = np.linalg.norm([got[:, 4:] - right[:, 4:] for right, got in zip(exact, given, strict=True)])
    score /= np.linalg.norm([right[:, 4:] for right in exact])
    return {"found": float((best >= FOUND).mean()), "overlap": float(best.mean()), "score": float(score)}


def boxes_of(output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of all boxes (boxes, 4), and the class with the highest score of each."""
    centres, sizes = output[:2].astype(np.float64), output[2:4].astype(np.float64)
    return np.concatenate([centres - sizes / 2, centres + sizes / 2]).T, output[4:].argmax(0)


def overlap_of(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each box of `some` and each of `others`: (boxes, boxes)."""
    first = np.maximum(some[:, None, :2], others[None, :, :2])
    last = np.minimum(some[:, None, 2:4], others[None, :, 2:4])
    common = np.maximum(last - first, 0).prod(2)
    areas = [np.maximum(boxes[:, 2:4] - boxes[:, :2], 0).prod(1) for boxes in (some, others)]
    return common / np.maximum(areas[0][:, None] + areas[1][None] - common, 1e-12)


if __name__ == "__main__":
    sys.exit(main())
