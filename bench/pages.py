"""Time RapidOCR on pages that all differ, with cpuconv and ONNX Runtime: `python -m bench.pages --help`.

Each engine reads all pages in its own process, and then the same pages again. Pages are drawn at random, or are image
files.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from baselib.interpreter import python
from bench import options
from bench.options import positive
from bench.settings import machine_name
from bench.sizes import caches

ENGINES = {"onnxruntime": "ONNX Runtime", "cpuconv": "cpuconv"}
WIDTHS, LINES, LETTERS = (400, 1600), (4, 18), (18, 34)  # pixels of a page, lines of a page, pixels of a letter
WORDS = """the of and with for over under between street river morning evening picture letter number window garden
mountain reading writing paper printer kitchen station railway harbour weather thunder quickly slowly always"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print seconds per page of each engine, and ratios; return 1 if engines or later readings give other words."""
    args = parser().parse_args(argv)
    if args.engine:
        print(json.dumps(read_pages(args.engine, pages(args), args.threads)))
        return 0
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for _ in range(args.rounds):
        for engine, runs in found.items():
            runs.append(ask(engine, args))
    print(table(found, args))
    words = {json.dumps(run["words"]) for runs in found.values() for run in runs}
    lines = sum(map(len, json.loads(min(words))))
    print(f"{lines} lines; the words are {'the same' if len(words) == 1 else 'NOT THE SAME'}")
    options.write_json(args.json, {"cpu": machine_name(), "cache": args.cache, "runs": found})
    changed = sum(run["changed"] for runs in found.values() for run in runs)
    if changed:
        print(f"{changed} pages had OTHER WORDS AGAIN")
    return int(len(words) > 1 or changed > 0)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("pages", __doc__, "--rounds", "--json", rounds=1)
    p.add_argument("files", nargs="*", metavar="IMAGE", help="images of pages (default: generated pages)")
    p.add_argument("--pages", type=positive, default=15, help="number of generated pages (15)")
    p.add_argument("--seed", type=int, default=1, help="seed of sizes and words (1)")
    p.add_argument("--threads", type=positive, help="threads of each engine (its default)")
    p.add_argument("--cache", default="empty", choices=caches.CACHES, help="kernels of cpuconv (%(default)s)")
    p.add_argument("--engine", choices=ENGINES, help="read with one engine in this process, and print JSON")
    return p


def ask(engine: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a new process."""
    passed = [f"--pages={args.pages}", f"--seed={args.seed}", *(f"--threads={args.threads}",) * bool(args.threads)]
    command = python("-m", "bench.pages", "--engine", engine, *passed, *args.files)
    with caches.environment(args.cache) as variables:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
    return json.loads(done.stdout.splitlines()[-1])


def read_pages(engine: str, pictures: Sequence[Any], threads: int | None) -> dict[str, Any]:
    """Time building the reader, and each page for the first time and again; return also the words.

    "words" is the list of lines of each page, and "changed" the number of pages that had other words again.
    """
    from rapidocr_onnxruntime import RapidOCR

    ends = [time.perf_counter()]
    if engine == "cpuconv":
        from rapidocr_onnxruntime.utils import infer_engine

        import cpuconv

        infer_engine.InferenceSession = cpuconv.InferenceSession
    reader = RapidOCR(**({"intra_op_num_threads": threads} if threads else {}))
    ends.append(time.perf_counter())
    words = []
    for picture in [*pictures, *pictures]:
        result, _ = reader(picture)
        ends.append(time.perf_counter())
        words.append([line[1] for line in result or ()])
    (made, *times), count = np.diff(ends).tolist(), len(pictures)
    changed = sum(one != other for one, other in zip(words[:count], words[count:], strict=True))
    figures = {"made": made, "first": times[:count], "again": times[count:]}
    return {**figures, "words": words[:count], "changed": changed}


def table(found: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> str:
    """Return the table of seconds by engine: building the reader, a page for the first time (mean, worst), again."""
    means: dict[str, tuple[float, ...]] = {}
    for engine, runs in found.items():
        columns = [
            (run["made"], *(f(run[turn]) for turn in ("first", "again") for f in (statistics.fmean, max)))
            for run in runs
        ]
        means[engine] = tuple(map(statistics.median, zip(*columns, strict=True)))
    rows = [[ENGINES[engine], *(f"{seconds:.3f}" for seconds in each)] for engine, each in means.items()]
    ratios = (peer / own for peer, own in zip(means["onnxruntime"], means["cpuconv"], strict=True))
    rows.append(["ONNX Runtime ÷ cpuconv", *(f"{ratio:.2f}" for ratio in ratios)])
    headers = ("seconds", "made", "a page, first time", "worst", "a page again", "worst")
    pack = "" if args.cache == "none" else f" ({caches.pack_title()})"
    title = f"{machine_name()}; cpuconv has {caches.CACHES[args.cache]}{pack}"
    return f"{title}\n\n{tabulate(rows, headers, disable_numparse=True)}"


def pages(args: argparse.Namespace) -> list[Any]:
    """Return the pages: paths of files, or drawn pages as arrays."""
    return args.files or [page(args.seed + number) for number in range(args.pages)]


def page(seed: int) -> np.ndarray:
    """Draw a page of random size: lines of some words, dark on light, BGR."""
    from PIL import Image, ImageDraw, ImageFont

    rng = random.Random(seed)
    width, lines, letter = (rng.randint(*ends) for ends in (WIDTHS, LINES, LETTERS))
    image = Image.new("RGB", (width, (2 * lines + 1) * letter), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=letter)
    for line in range(lines):
        words = rng.choices(WORDS.split(), k=rng.randint(1, 8))
        while len(words) > 1 and letter + draw.textlength(" ".join(words), font) > width:
            words.pop()
        draw.text((letter, (2 * line + 1) * letter), " ".join(words), fill="black", font=font)
    return np.asarray(image)[:, :, ::-1].copy()


if __name__ == "__main__":
    sys.exit(main())
