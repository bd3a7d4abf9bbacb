"""Compare `cpuconv.reorder` with `np.copyto` for every pair of layouts: `python -m bench.reorder --help`.

The baseline is `np.copyto` between two existing contiguous arrays with as many bytes as the larger of source and
result. Two shares of its speed are measured: a reorder into existing memory (`out=`), and one that allocates its
result. Elements have the type
`--element`, and are converted to that of `--to`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tabulate import tabulate

import cpuconv
import layouts
from bench import options
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
SHARES = ("out=", "new")
SECONDS = 0.002  # minimum duration of a sample
CALLS = 2000  # calls of a small reorder per sample


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row per pair: µs of a small call; shares of `np.copyto`'s speed, worst and geometric mean over sizes."""
    args = parser().parse_args(argv)
    cpuconv.set_num_threads(args.threads)
    kind = Kind(TABLE[args.element], TABLE[args.to or args.element])
    small = {pair: small_call(kind, *pair, args.rounds, args.calls) for pair in PAIRS}
    sampled = args.rounds, args.seconds_per_sample
    large = [measure(kind, pair, shape, *sampled) for shape in args.shapes or SHAPES for pair in PAIRS]
    calls = [{"pair": list(pair), "us": us} for pair, us in small.items()]
    options.write_json(args.json, {"threads": args.threads, "small": calls, "large": large})
    print(table(small, large, args.all))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("reorder", __doc__, "--rounds", "--json")
    p.add_argument("--threads", type=int, default=1, help="threads of the reorder; np.copyto has one (1)")
    p.add_argument("--seconds-per-sample", type=float, default=SECONDS, help=f"of a large reorder ({SECONDS})")
    p.add_argument("--calls", type=int, default=CALLS, help=f"of a small reorder in a sample ({CALLS})")
    p.add_argument("--shapes", type=shape, nargs="+", help="as 1x64x28x28, in place of the built-in list")
    p.add_argument("--element", choices=TABLE, default="f32", help="type of the elements (f32)")
    p.add_argument("--to", choices=TABLE, help="type of the results, if another")
    p.add_argument("--all", action="store_true", help="print every pair and shape")
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
    x = kind.source(SMALL, src)
    cpuconv.reorder(x, src, dst, **kind.options)
    return min(microseconds(lambda: cpuconv.reorder(x, src, dst, **kind.options), calls) for _ in range(rounds))


def measure(
    kind: Kind, pair: tuple[Any, Any], shape: tuple[int, int, int, int], rounds: int, seconds: float = SECONDS
) -> dict[str, Any]:
    """Measure µs per call and shares of a plain copy's speed; medians of rounds in which all calls run in turn."""
    src, dst = pair

    def move(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return cpuconv.reorder(x, src, dst, channels=shape[1], out=out, **kind.options)

    x = kind.source(shape, src)
    y = move(x)
    size = max(x.nbytes, y.nbytes)
    flat, copied = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    subjects = {"out=": lambda: move(x, out=y), "new": lambda: move(x), "copyto": lambda: np.copyto(copied, flat)}
    times = {name: max(1, math.ceil(seconds * 1e6 / microseconds(call, 2))) for name, call in subjects.items()}
    samples = [{name: microseconds(call, times[name]) for name, call in subjects.items()} for _ in range(rounds)]
    return {
        "pair": list(pair),
        "shape": list(shape),
        "bytes": size,
        "us": {name: statistics.median(sample[name] for sample in samples) for name in subjects},
        "shares": {name: statistics.median(each["copyto"] / each[name] for each in samples) for name in SHARES},
    }


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
    heads += [f"{how}{name}" for name in SHARES for how in (("",) if everything else WORST)]
    return tabulate(rows, heads, disable_numparse=True)


def shares(lines: list[dict[str, Any]]) -> list[str]:
    """Return worst and geometric mean of each share over these lines; for a single line, its share."""
    cells = []
    for share in SHARES:
        values = [line["shares"][share] for line in lines]
        whole = [min(values), statistics.geometric_mean(values)]
        cells += [f"{value:.2f}" for value in (whole[:1] if len(lines) == 1 else whole)]
    return cells


if __name__ == "__main__":
    sys.exit(main())
