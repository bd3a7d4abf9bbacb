"""Compare `cpuconv.reorder` with `np.copyto` for every pair of layouts: `python -m bench.reorder --help`.

The baseline is `np.copyto` between two existing contiguous arrays with as many bytes as the larger of source and
result. Two shares of its speed are measured: a reorder into existing memory (`out=`), and one that allocates its
result. A third column has the speed of `out=` over that of NumPy's own strided conversion. Elements have the type
`--element`, and are converted to that of `--to`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/reorder.py` works too

import numpy as np
from tabulate import tabulate

import layouts
from bench.overhead import microseconds
from cpuconv.elements import F32, TABLE, Element

SHAPES = (  # (N, C, H, W): planes of 7 to 224, 0.2 to 51 MB, full and partial channel blocks
    (1, 1024, 7, 7),
    (8, 250, 7, 7),
    (1, 512, 14, 14),
    (1, 64, 28, 28),
    (1, 100, 28, 28),
    (1, 256, 32, 32),
    (1, 3, 224, 224),
    (1, 256, 56, 56),
    (1, 30, 112, 112),
    (1, 64, 224, 224),
    (4, 64, 224, 224),
)
SMALL = (1, 64, 7, 7)
PAIRS = tuple(itertools.product(layouts.NAMES, layouts.NAMES))
WORST = ("worst ", "mean ")
SECONDS = 0.002  # minimum duration of a sample
CALLS = 2000  # calls of a small reorder per sample


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row per pair: µs of a small call; shares of `np.copyto`'s speed, worst and geometric mean over sizes."""
    import cpuconv

    args = parser().parse_args(argv)
    cpuconv.set_num_threads(args.threads)
    kind = Kind(TABLE[args.element], TABLE[args.to or args.element])
    small = {pair: small_call(kind, *pair, args.rounds, args.calls) for pair in PAIRS}
    sampled = args.rounds, args.seconds_per_sample
    large = [measure(kind, pair, shape, *sampled) for shape in args.shapes or SHAPES for pair in PAIRS]
    if args.json:
        calls = [{"pair": list(pair), "us": us} for pair, us in small.items()]
        args.json.write_text(json.dumps({"threads": args.threads, "small": calls, "large": large}, indent=1) + "\n")
    print(table(small, large, args.all))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.reorder", description=__doc__)
    p.add_argument("--threads", type=int, default=1, help="threads of the reorder; np.copyto has one (1)")
    p.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    p.add_argument("--seconds-per-sample", type=float, default=SECONDS, help=f"of a large reorder ({SECONDS})")
    p.add_argument("--calls", type=int, default=CALLS, help=f"of a small reorder in a sample ({CALLS})")
    p.add_argument("--shapes", type=shape, nargs="+", help="as 1x64x28x28, in place of the built-in list")
    p.add_argument("--element", choices=TABLE, default="f32", help="type of the elements (f32)")
    p.add_argument("--to", choices=TABLE, help="type of the results, if another")
    p.add_argument("--all", action="store_true", help="print every pair and shape")
    p.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    return p


def shape(text: str) -> tuple[int, ...]:
    """Parse (N, C, H, W)."""
    sizes = tuple(map(int, text.split("x")))
    if len(sizes) != 4:
        raise argparse.ArgumentTypeError(f"{text!r} must be NxCxHxW")
    return sizes


@dataclass(frozen=True)
class Kind:
    """Element types of source and result."""

    read: Element = F32
    written: Element = F32

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `cpuconv.reorder` for these types."""
        if self.read == self.written:
            return {}
        scaled = self.read.integer != self.written.integer
        return {"dtype": self.written.label, **({"scale": 1 / 255} if scaled else {})}

    def source(self, shape: tuple[int, int, int, int], layout: str) -> np.ndarray:
        """Make a random C-contiguous array of a layout."""
        drawn = np.random.default_rng(0).random(layouts.get(layout).shape(*shape), np.float32)
        return (100 * drawn if self.read.integer else drawn).astype(self.read.outside)


def small_call(kind: Kind, src: Any, dst: Any, rounds: int, calls: int = CALLS) -> float:
    """Return µs of a call on a small array."""
    import cpuconv

    x = kind.source(SMALL, src)
    cpuconv.reorder(x, src, dst, **kind.options)
    return min(microseconds(lambda: cpuconv.reorder(x, src, dst, **kind.options), calls) for _ in range(rounds))


def measure(
    kind: Kind, pair: tuple[Any, Any], shape: tuple[int, int, int, int], rounds: int, seconds: float = SECONDS
) -> dict[str, Any]:
    """Measure µs per call and shares of the speed of copies; medians of rounds in which all calls run in turn.

    Shares refer to the plain copy and to NumPy's strided one (None if channels do not fill their blocks).
    """
    import cpuconv

    src, dst = pair

    def move(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return cpuconv.reorder(x, src, dst, channels=shape[1], out=out, **kind.options)

    x = kind.source(shape, src)
    y = move(x)
    size = max(x.nbytes, y.nbytes)
    flat, copied = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    subjects = {
        "reorder": lambda: move(x),
        "into": lambda: move(x, out=y),
        "copyto": lambda: np.copyto(copied, flat),
    }
    if kind.read == kind.written and x.size == y.size and shape[1] % max(layouts.get(name).block for name in pair) == 0:
        views = by_channel(x, src, pair), by_channel(np.zeros_like(y), dst, pair)
        subjects["numpy"] = lambda: np.copyto(views[1], views[0])
    times = {name: max(1, math.ceil(seconds * 1e6 / microseconds(call, 2))) for name, call in subjects.items()}
    samples = [{name: microseconds(call, times[name]) for name, call in subjects.items()} for _ in range(rounds)]
    figures: dict[str, Any] = {"pair": list(pair), "shape": list(shape), "bytes": size}
    for name in subjects:
        figures[f"{name}_us"] = statistics.median(sample[name] for sample in samples)
    for name, yard in itertools.product(("reorder", "into"), ("copyto", "numpy")):
        ratios = [sample[yard] / sample[name] for sample in samples if yard in sample]
        figures[f"{name}_of_{yard}"] = statistics.median(ratios) if ratios else None
    return figures


def by_channel(x: np.ndarray, layout: str, pair: tuple[str, str]) -> np.ndarray:
    """View `x` with axes n, blocks of the coarser layout, finer blocks in each, channels in each of these, h, w."""
    fine, coarse = sorted(layouts.get(name).block for name in pair)
    known = layouts.get(layout)
    n, h, w = (x.shape[known.axes.index(axis)] for axis in "nhw")
    if known.block == 1:
        shape = {"n": (n,), "c": (-1, coarse // fine, fine), "h": (h,), "w": (w,)}
        split = x.reshape([size for axis in known.axes for size in shape[axis]])
        return split if known.name == "NCHW" else split.transpose(0, 3, 4, 5, 1, 2)
    split = x.reshape(n, -1, coarse // known.block, h, w, known.block // fine, fine)
    joined = split.transpose(0, 1, 2, 5, 6, 3, 4)  # one of the axes 2 and 3 has a single element
    return joined[:, :, 0] if joined.shape[2] == 1 else joined[:, :, :, 0]


def table(small: dict[tuple[str, str], float], large: list[dict[str, Any]], everything: bool) -> str:
    """Table with a row per pair and shape, or per pair."""
    rows = []
    for pair in PAIRS:
        of = [line for line in large if line["pair"] == list(pair)]
        if everything:
            rows += [(" to ".join(pair), "x".join(map(str, line["shape"])), *shares([line])) for line in of]
        else:
            rows.append((" to ".join(pair), f"{small[pair]:.2f}", *shares(of)))
    rows.append(("all", "" if everything else f"{max(small.values()):.2f}", *shares(large)))
    heads = ["pair", "shape" if everything else "small call, us"]
    heads += [f"{how}{name}" for name in ("out=", "new", "out= / NumPy") for how in (("",) if everything else WORST)]
    return tabulate(rows, heads, disable_numparse=True)


def shares(lines: list[dict[str, Any]]) -> list[str]:
    """Return worst and geometric mean of each share over these lines; for a single line, its share."""
    cells = []
    for share in ("into_of_copyto", "reorder_of_copyto", "into_of_numpy"):
        values = [line[share] for line in lines if line[share] is not None]
        whole = [min(values), statistics.geometric_mean(values)] if values else [math.nan] * 2
        cells += [f"{value:.2f}" for value in (whole[:1] if len(lines) == 1 else whole)]
    return cells


if __name__ == "__main__":
    sys.exit(main())
