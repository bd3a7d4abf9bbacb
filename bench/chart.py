"""Draw the chart of networks, and write figures into the pages: `python -m bench.chart --help`.

`docs/performance/networks.json` has the runs of `bench.models` that the pages show, all on one CPU: float32, bfloat16
and the engines' defaults. The chart is an SVG that is readable at 360 pixels and follows the reader's light or dark
scheme. `networks-2026.json` has the runs of the set 2026, which have tables only. Figures of some networks replace
those stored if CPU, engines, threads and precision are the same.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tabulate import tabulate

from baselib.files import write_whole
from bench import options
from bench.models import Data
from bench.networks import SETS, networks
from bench.peers import CPUCONV, OWN_F32
from bench.report import NOTHING, replaced

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "performance"
FIGURES, CHART, PAGE = (FOLDER / f"networks.{suffix}" for suffix in ("json", "svg", "md"))
RECENT = SETS[1]  # the set of the page with tables only
RECENT_FIGURES, RECENT_PAGE = (FOLDER / f"networks-{RECENT}.{suffix}" for suffix in ("json", "md"))
SUMMARIES = {ROOT / "README.md": "docs/performance/", ROOT / "docs" / "index.md": "performance/"}  # path of the chart
MARKS = "networks"  # name of the markers in the pages
WORDS = {"float32": "float32", "bf16": "bfloat16", "int8": "int8 files", "default": "default settings"}
DRAWN = ("resnet50", "mobilenet_v2", "efficientnet_b0", "inception_v1", "vgg19")
NAMES = {
    "bvlc_alexnet": "AlexNet",
    "densenet121": "DenseNet-121",
    "densenet121_torch": "DenseNet-121 (torchvision)",
    "inception_v1": "Inception-v1",
    "inception_v2": "Inception-v2",
    "resnet50": "ResNet-50",
    "shufflenet": "ShuffleNet",
    "squeezenet": "SqueezeNet",
    "vgg19": "VGG-19",
    "zfnet512": "ZFNet-512",
    "resnet18": "ResNet-18",
    "mobilenet_v2": "MobileNetV2",
    "mobilenet_v3_large": "MobileNetV3-L",
    "efficientnet_b0": "EfficientNet-B0",
    "regnet_y_400mf": "RegNetY-400MF",
    "shufflenet_v2": "ShuffleNetV2",
    "convnext_tiny": "ConvNeXt-T",
    "fcn_resnet50": "FCN-ResNet-50",
    "u_net": "U-Net",
    "ppocr_det": "PP-OCR detector",
    "ppocr_rec": "PP-OCR recogniser",
    "ppocr_cls": "PP-OCR classifier",
    "open_nsfw": "Open NSFW",
}


@dataclass(frozen=True)
class Series:
    """One bar of every network: an engine in the first measured of some precisions of `bench.models`."""

    label: str
    engine: str
    precisions: tuple[str, ...]
    ours: bool = False


SERIES = (
    Series("cpuconv", CPUCONV, ("float32",), True),
    Series("ONNX Runtime", "onnxruntime", ("float32",)),
    Series("OpenVINO, float32", "openvino", ("float32",)),
    Series("MNN", "mnn", ("float32",)),
    Series("PyTorch", "torch", ("float32",)),
    Series("cpuconv, bfloat16", CPUCONV, ("bf16",), True),
    Series("OpenVINO, default", "openvino", ("default", "bf16")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Store the given runs, and write the chart and the pages."""
    args = parser().parse_args(argv)
    measured = [run for path in args.runs for run in json.loads(path.read_text(encoding="utf-8"))]
    recent = [run for run in measured if run.get("set") == RECENT]
    if len(recent) < len(measured):
        older = [run for run in measured if run not in recent]
        write_whole({FIGURES: json.dumps(reduced(older, args.cpu), indent=1) + "\n"})
    if recent:
        runs = merged([*stored(RECENT_FIGURES), *reduced(recent, args.cpu)])
        write_whole({RECENT_FIGURES: json.dumps(runs, indent=1) + "\n"})
    write_whole(pages(stored(FIGURES), stored(RECENT_FIGURES)))
    return 0


def stored(path: Path) -> list[dict[str, Any]]:
    """Return the runs in a file; none if there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def merged(runs: Sequence[Data]) -> list[dict[str, Any]]:
    """Join runs that differ in networks only, in the order of the set; a later figure replaces an earlier one."""
    groups: dict[str, dict[str, Any]] = {}
    order = list(networks(RECENT))
    for run in runs:
        named = ("cpu", "threads", "batch", "precision", "strategy", "engines")
        group = groups.setdefault(json.dumps([run[name] for name in named]), dict(run) | {"lines": []})
        again = {line["label"] for line in run["lines"]}
        lines = [*(line for line in group["lines"] if line["label"] not in again), *run["lines"]]
        group["lines"] = sorted(lines, key=lambda line: order.index(line["label"]))
    for group in groups.values():
        ratios = [line["ratio"] for line in group["lines"] if line["ratio"]]
        means = {kind: statistics.geometric_mean(ratio[kind] for ratio in ratios) for kind in ("median", "best")}
        group |= {"geomean": means, "worst": min(ratios, key=lambda ratio: ratio["median"])}
    return list(groups.values())


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("chart", __doc__)
    p.add_argument("runs", nargs="*", type=Path, metavar="FILE", help="figures of `bench.models --json` (those stored)")
    p.add_argument("--cpu", metavar="TEXT", help="the CPU's name for readers (that which the system tells)")
    return p


def reduced(runs: Sequence[Data], cpu: str | None = None) -> list[dict[str, Any]]:
    """Return the figures of runs of one image that the pages need.

    Raises
    ------
    SystemExit
        If the runs are of several CPUs, or of more images.
    """
    if len(cpus := {run["cpu"] for run in runs}) != 1:
        raise SystemExit(f"One CPU a chart, not {len(cpus)}: {', '.join(sorted(cpus))}.")
    if any(run["batch"] != 1 for run in runs):
        raise SystemExit("The pages show runs of one image: --batch 1.")
    named = ("threads", "batch", "precision", "strategy", "engines", "geomean", "worst")
    return [
        {"cpu": cpu or run["cpu"]}
        | {name: run[name] for name in named}
        | {"lines": [_line(line) for line in run["lines"]]}
        for run in runs
    ]


def _line(line: Data) -> dict[str, Any]:
    engines = {
        key: {name: round(timing[name], 7) for name in ("median", "best") if name in timing}
        for key, timing in line["engines"].items()
    }
    return {"label": line["label"], "engines": engines} | {key: line[key] for key in ("without", "best_peer", "ratio")}


def pages(runs: Sequence[Data], recent: Sequence[Data]) -> dict[Path, str]:
    """Return the texts of the chart and the pages, by path, from runs of the older and of the recent networks."""
    drawn = {CHART: svg(runs), PAGE: replaced(PAGE, tables(runs), MARKS)}
    if recent:
        drawn |= {RECENT_PAGE: replaced(RECENT_PAGE, tables(recent), MARKS)}
    for path, folder in SUMMARIES.items():
        drawn |= {path: replaced(path, "\n\n".join([summary(runs, folder), *_recent_summary(recent, folder)]), MARKS)}
    return drawn


# --- the chart ------------------------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT = 360, 128, 40  # pixels: chart, labels, figures after bars
ROW, HEAD, TOP = 14, 24, 40
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2328; }
.paper { fill: #ffffff; }
.name { font-weight: 600; font-size: 13px; }
.note { fill: #59636e; font-size: 11px; }
.ours { fill: #0969da; }
.peer { fill: #afb8c1; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .paper { fill: #0d1117; }
  .note { fill: #9198a1; }
  .ours { fill: #4493f8; }
  .peer { fill: #59636e; }
}
"""


def svg(runs: Sequence[Data]) -> str:
    """Draw bars of milliseconds by network, each network to the scale of its slowest engine."""
    groups = {name: list(_bars(runs, name)) for name in DRAWN}
    height = TOP + sum(HEAD + ROW * len(bars) for bars in groups.values() if bars) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title about">',
        '<title id="title">Milliseconds of networks by engine</title>',
        f'<desc id="about">{escape(_spoken(groups))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        '<text class="name" x="8" y="18">Milliseconds for one image, one thread</text>',
        f'<text class="note" x="8" y="33">{escape(_cpu(runs).partition(",")[0])}; shorter is faster</text>',
    ]
    y = TOP
    for name, bars in groups.items():
        if not bars:
            continue
        parts.append(f'<text class="name" x="8" y="{y + 17}">{escape(NAMES.get(name, name))}</text>')
        y += HEAD
        most = max(seconds for _, seconds in bars if seconds is not None)
        for series, seconds in bars:
            parts += _bar(series, seconds, most, y)
            y += ROW
    return "\n".join([*parts, "</svg>", ""])


def _bars(runs: Sequence[Data], network: str) -> Iterator[tuple[Series, float | None]]:
    """Yield the engines that ran a network, and their seconds; None if the result was wrong."""
    for series in SERIES:
        if (run := _run(runs, series)) and (line := _lines(run).get(network)):
            if timing := line["engines"].get(series.engine):
                yield series, timing["median"]
            elif line["without"].get(series.engine) == "wrong":
                yield series, None


def _bar(series: Series, seconds: float | None, most: float, y: int) -> Iterator[str]:
    yield f'<text x="8" y="{y + 10}">{escape(series.label)}</text>'
    length = 0.0 if seconds is None else max(1.0, (WIDTH - LEFT - RIGHT) * seconds / most)
    if seconds is not None:
        kind = "ours" if series.ours else "peer"
        yield f'<rect class="{kind}" x="{LEFT}" y="{y + 1}" width="{length:.1f}" height="{ROW - 3}" rx="2"/>'
    text = "wrong result" if seconds is None else _milliseconds(seconds)
    yield f'<text x="{LEFT + length + 4:.1f}" y="{y + 10}">{text}</text>'


def _spoken(groups: Mapping[str, Sequence[tuple[Series, float | None]]]) -> str:
    """Describe the chart as text for screen readers."""
    rows = []
    for name, bars in groups.items():
        figures = (f"{series.label} {_milliseconds(seconds)}" for series, seconds in bars if seconds is not None)
        rows += [f"{NAMES.get(name, name)}: {', '.join(figures)}."] if bars else []
    return " ".join(rows)


# --- pages ------------------------------------------------------------------------------------------------------------


def summary(runs: Sequence[Data], folder: str) -> str:
    """Return the chart with its caption: measurements and caveats."""
    held = _run(runs, SERIES[0])
    assert held is not None, "a run of float32 on one thread"
    others = [engine for key, engine in held["engines"].items() if key != CPUCONV]
    peers = " and ".join(", ".join(engine["name"] for engine in others).rsplit(", ", 1))
    worst = min(held["lines"], key=lambda line: line["ratio"]["median"] if line["ratio"] else math.inf)
    versions = ", ".join(f"{engine['name']} {engine['version']}" for engine in others)
    texts = [
        f'<img src="{folder}{CHART.name}" width="480" alt="Milliseconds of networks by engine; the figures are in '
        f'tables of the page on networks">',
        f"{_cpu(runs)}; untuned; {versions}. In float32, cpuconv is {held['geomean']['median']:.2f} times as fast as "
        f"the fastest of {peers} on each network (geometric mean of {len(held['lines'])} networks; worst "
        f"{held['worst']['median']:.2f}, {NAMES.get(worst['label'], worst['label'])}).",
    ]
    return "\n\n".join([*texts, *_caveat(runs)])


def _recent_summary(runs: Sequence[Data], folder: str) -> Iterator[str]:
    """Summarise the ratios of the recent networks in one sentence."""
    if not runs:
        return
    ratios = [
        f"{run['geomean']['median']:.2f} in {WORDS[run['precision']]} on {_threads(run)} "
        f"(worst {run['worst']['median']:.2f})"
        for run in runs
    ]
    yield (
        f"{_cpu(runs)}; [{len(runs[0]['lines'])} networks of {RECENT}]({folder}{RECENT_PAGE.name}): YOLO, DETRs, "
        f"vision transformers and others, untuned. Time of the fastest other engine over cpuconv's, geometric means: "
        f"{', '.join(ratios)}. In bfloat16 the other engine is OpenVINO."
    )


def _caveat(runs: Sequence[Data]) -> Iterator[str]:
    """Compare the defaults: OpenVINO's is bfloat16 if the CPU has instructions for it."""
    low, default = (next((run for run in runs if _is(run, precision)), None) for precision in ("bf16", "default"))
    unasked, key = (default, CPUCONV) if default else (low, OWN_F32)
    if unasked is None or low is None:
        return
    speed = _mean(unasked, key, "openvino")
    compared = f"{speed:.2f} times as fast as" if speed >= 1 else f"slower ({speed:.2f} times the speed) than"
    yield (
        "**At default settings OpenVINO computes in bfloat16 on this CPU, with fewer digits, and is "
        f'{compared} cpuconv, whose default is float32.** With `precision="bfloat16"` cpuconv is '
        f"{_mean(low, 'openvino', CPUCONV):.2f} times as fast as OpenVINO (geometric means of "
        f"{len(low['lines'])} networks)."
    )


def _mean(run: Data, slow: str, fast: str) -> float:
    """Return the geometric mean of one engine's time over another's."""
    both = [line["engines"] for line in run["lines"] if {slow, fast} <= line["engines"].keys()]
    return math.exp(sum(math.log(each[slow]["median"] / each[fast]["median"]) for each in both) / len(both))


def tables(runs: Sequence[Data]) -> str:
    """Return a table of all networks for each run."""
    parts = []
    for run in runs:
        names = {key: engine["name"] for key, engine in run["engines"].items()}
        rows = [
            [
                NAMES.get(line["label"], line["label"]),
                *(_cell(line, key) for key in names),
                names.get(line["best_peer"], NOTHING),
                f"{line['ratio']['median']:.2f}" if line["ratio"] else NOTHING,
            ]
            for line in run["lines"]
        ]
        threads = _threads(run)
        title = f"**{threads[0].upper()}{threads[1:]}, {WORDS[run['precision']]}**"
        mean = f"geometric mean {run['geomean']['median']:.2f}, worst {run['worst']['median']:.2f}"
        headers = ["network", *names.values(), "best peer", "÷ cpuconv"]
        parts += [f"{title}: {mean}.", tabulate(rows, headers, "pipe", disable_numparse=True, stralign="left")]
    return "\n\n".join([f"{_cpu(runs)}. Milliseconds, medians.", *parts])


def _cell(line: Data, key: str) -> str:
    timing = line["engines"].get(key)
    return line["without"].get(key, NOTHING) if timing is None else _milliseconds(timing["median"])


# --- runs -----------------------------------------------------------------------------------------------------------


def _run(runs: Sequence[Data], series: Series) -> Data | None:
    """Return the run on one thread that has a series."""
    found = (run for precision in series.precisions for run in runs if _is(run, precision))
    return next((run for run in found if series.engine in run["engines"]), None)


def _is(run: Data, precision: str) -> bool:
    return bool(run["threads"] == 1 and run["precision"] == precision)


def _lines(run: Data) -> dict[str, Data]:
    return {line["label"]: line for line in run["lines"]}


def _threads(run: Data) -> str:
    return "one thread" if run["threads"] == 1 else f"{run['threads']} threads"


def _cpu(runs: Sequence[Data]) -> str:
    return str(runs[0]["cpu"])


def _milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds with three digits."""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.3g}" if milliseconds < 1000 else f"{milliseconds:.0f}"


if __name__ == "__main__":
    sys.exit(main())
