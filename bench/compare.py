"""Compare cpuconv with PyTorch, ONNX Runtime, OpenVINO, ncnn and MNN: `python -m bench.compare --help`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/compare.py` works too

from rich.console import Console

from autotune.files import write_whole
from bench import report, shapes, typed
from bench.peers import OWN_F32, PEERS
from bench.peers.cpuconv_peer import CALLS
from bench.race import Race
from bench.results import LineResult
from bench.settings import ALL, GROUPS, OWN, TYPED, Run, Settings, layout_names, words
from cpuconv.conv.choice.model import AUTO
from cpuconv.problem.types import ALL_F32, Types

INTERRUPTED = 130
STRATEGIES = ("cached", "heuristic", "profile")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; 0 on success, 1 without an engine or a line, 130 when interrupted."""
    args = parser().parse_args(argv)
    if args.call == "conv2d" and AUTO in layout_names(args.layouts):
        raise SystemExit("Argument '--layouts' must be of layout names with --call conv2d, as in nchw, not auto.")
    console = Console(stderr=True)
    asked = settings(
        args,
        threads=args.threads,
        layouts=layout_names(args.layouts),
        strategy=args.strategy,
        call=args.call,
        groups=words(args.groups, GROUPS, "--groups"),
        batch=args.batch,
    )
    asked = replace(in_types(asked, args.types), w_bits=args.weight_bits)
    if args.draw:
        lines = shapes.at_random(args.draw, args.seed, args.lines, args.types)
    else:
        lines = shapes.load(args.shapes, args.lines, args.batch, args.types)
    race = Race(lines, asked, console)
    race.measure_all()
    if race.results:
        publish(race.results, race.run, args)
    else:
        console.print("Nothing was measured.")
    return INTERRUPTED if race.interrupted else 0 if race.results else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    p.add_argument("--threads", type=positive, default=1, help="threads of each engine (1)")
    add_measuring(p)
    p.add_argument("--lines", default="", metavar="REGEX", help="only lines whose name or problem matches")
    p.add_argument("--types", type=types, default=ALL_F32, help="f32, bf16, int8, or x:w:y as in u8:s8:f32 (f32)")
    p.add_argument("--weight-bits", type=bits, default=typed.W_BITS, help="bits of integer weights (%(default)s)")
    p.add_argument("--draw", type=positive, metavar="N", help="N random lines instead of those of a file")
    p.add_argument("--seed", type=int, default=0, help="seed of --draw (0)")
    p.add_argument("--batch", type=positive, metavar="N", help="batch size of every line, instead of its own")
    p.add_argument("--layouts", default="auto", help="layouts of cpuconv, comma-separated: auto, nchw, ... (auto)")
    p.add_argument("--call", default=CALLS[0], choices=CALLS, help="a plan, or conv2d with writable weights (plan)")
    p.add_argument("--strategy", default=STRATEGIES[0], choices=STRATEGIES, help="strategy of cpuconv")
    groups = "; ".join(f"{name}: {', '.join(group)}" for name, group in GROUPS.items())
    p.add_argument("--groups", default="", help=f"columns of the best of a group, comma-separated ({groups})")
    p.add_argument("--targets", action="store_true", help="print which targets are met")
    p.add_argument("--details", action="store_true", help="print roofs, milliseconds, forms and errors")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    p.add_argument("--markdown", type=Path, metavar="FILE", help="write the report")
    return p


def add_measuring(p: argparse.ArgumentParser) -> None:
    """Add the options that say what to measure and how."""
    p.add_argument("--runs", type=positive, default=1, help="repetitions; figures are medians over them (1)")
    p.add_argument("--rounds", type=positive, default=5, help="timings of each engine per line (5)")
    p.add_argument("--seconds-per-sample", type=float, default=0.2, help="seconds per timing (0.2)")
    p.add_argument("--peers", default=",".join(GROUPS[ALL]), help="comma-separated (%(default)s)")
    p.add_argument("--shapes", type=Path, default=shapes.CANONICAL, metavar="FILE", help="benchdnn problem strings")
    p.add_argument("--timeout", type=float, default=600.0, help="timeout per engine, in seconds (600)")


def positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def bits(text: str) -> int:
    """Parse a number of bits that fits int8, sign included."""
    if not text.isdecimal() or not 2 <= int(text) <= typed.W_BITS:
        raise argparse.ArgumentTypeError(f"must be a whole number from 2 to {typed.W_BITS}, not {text!r}")
    return int(text)


def in_types(asked: Settings, types: Types) -> Settings:
    """Return the settings for other types: only the peers that support them, and cpuconv in float32 in addition."""
    if types == ALL_F32:
        return asked
    return replace(asked, types=types, peers=(OWN_F32, *(key for key in asked.peers if key in TYPED)))


def types(text: str) -> Types:
    """Parse the types of an option."""
    try:
        return typed.types_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def settings(args: argparse.Namespace, **more: Any) -> Settings:
    """Return the settings of the options; `more` has fields of `Settings` that the command sets itself."""
    fields: dict[str, Any] = {
        "rounds": args.rounds,
        "seconds": args.seconds_per_sample,
        "runs": args.runs,
        "peers": words(args.peers, [key for key in PEERS if key not in OWN], "--peers"),
        "timeout": args.timeout,
    }
    return Settings(**fields, **more)


def publish(results: list[LineResult], run: Run, args: argparse.Namespace) -> None:
    """Print the report and write the files that the options name."""
    data = report.to_dict(results, run)
    print(report.lines_table(data, "simple"), report.families_table(data, "simple"), sep="\n\n")
    print("", *report.remarks(data), sep="\n")
    if args.targets:
        print("", report.targets_table(results, run, "simple"), sep="\n")
    if args.details:
        print("", report.roofs_text(data), report.roofs_table(data, "simple"), sep="\n")
        print("", report.details_table(results, run, "simple"), sep="\n")
    files = {}
    if args.json:
        files[args.json] = json.dumps(data, indent=1) + "\n"
    if args.markdown:
        files[args.markdown] = report.markdown(results, run, with_targets=args.targets)
    write_whole(files)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C: print, and leave no process
    sys.exit(main())
