"""RapidOCR reads pages with cpuconv and with ONNX Runtime: `python -m bench.rapidocr --help`.

Each engine reads in processes of its own, in turn. The first picture includes what an engine does for the first time;
cpuconv's kernels are on disk by then, as one more process has read the same pages before. Pages are of one size and
have other words, so that their lines have other widths.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/rapidocr.py` works too

import numpy as np
from tabulate import tabulate

from autotune.interpreter import python

ENGINES = {"onnxruntime": "ONNX Runtime", "cpuconv": "cpuconv"}
LINES = 30
TIMES = ("made", "first picture", "new picture", "picture again")
WORDS = """the of and with for over under between street river morning evening picture letter number window garden
mountain reading writing paper printer kitchen station railway harbour weather thunder quickly slowly always"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print seconds of each engine, and their ratios; 1 if the engines read other words."""
    args = parser().parse_args(argv)
    if args.engine:
        print(json.dumps(read_pages(args.engine, args.pages)))
        return 0
    ask("cpuconv", args.pages)  # puts kernels on disk
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for _ in range(args.rounds):
        for engine, runs in found.items():
            runs.append(ask(engine, args.pages))
    medians = {
        engine: {name: statistics.median(run[name] for run in runs) for name in TIMES} for engine, runs in found.items()
    }
    rows = [[ENGINES[engine], *(f"{figures[name]:.3f}" for name in TIMES)] for engine, figures in medians.items()]
    rows.append(["ratio", *(f"{medians['onnxruntime'][name] / medians['cpuconv'][name]:.2f}" for name in TIMES)])
    print(tabulate(rows, ("seconds", *TIMES), disable_numparse=True))
    words = {json.dumps(run["words"]) for runs in found.values() for run in runs}
    print(f"{LINES} lines a page; the words are {'the same' if len(words) == 1 else 'not the same'}")
    return int(len(words) > 1)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.rapidocr", description=__doc__)
    p.add_argument("--pages", type=int, default=4, help="different pages (4)")
    p.add_argument("--rounds", type=int, default=3, help="processes of each engine (3)")
    p.add_argument("--engine", choices=ENGINES, help="read with one engine in this process, and print JSON")
    return p


def ask(engine: str, pages: int) -> dict[str, Any]:
    """What a new process with an engine measures."""
    command = python(str(Path(__file__).resolve()), "--engine", engine, "--pages", str(pages))
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def read_pages(engine: str, pages: int) -> dict[str, Any]:
    """Seconds to make the reader, and to read each page once and once more; and the words of all pages."""
    from rapidocr_onnxruntime import RapidOCR

    pictures = [page(seed) for seed in range(pages)]
    start = time.perf_counter()
    if engine == "cpuconv":
        from rapidocr_onnxruntime.utils import infer_engine

        import cpuconv

        infer_engine.InferenceSession = cpuconv.InferenceSession
    reader = RapidOCR()
    made = time.perf_counter() - start
    seconds, words = [], []
    for picture in [*pictures, *pictures]:
        start = time.perf_counter()
        result, _ = reader(picture)
        seconds.append(time.perf_counter() - start)
        words.append([line[1] for line in result])
    figures = (made, seconds[0], statistics.median(seconds[1:pages]), statistics.median(seconds[pages:]))
    return {**dict(zip(TIMES, figures, strict=True)), "words": words[:pages]}


def page(seed: int) -> np.ndarray:
    """A page of lines, each of some words, dark on light."""
    from PIL import Image, ImageDraw, ImageFont

    rng = random.Random(seed)
    image = Image.new("RGB", (960, 40 * LINES + 40), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=24)
    for line in range(LINES):
        draw.text(
            (40, 20 + 40 * line), " ".join(rng.choices(WORDS.split(), k=rng.randint(3, 8))), fill="black", font=font
        )
    return np.asarray(image)[:, :, ::-1].copy()


if __name__ == "__main__":
    sys.exit(main())
