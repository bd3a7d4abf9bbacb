"""Compare cpuconv with PyTorch, ONNX Runtime, OpenVINO, ncnn and MNN: `python -m bench.compare --help`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from baselib.files import write_whole
from bench import options, report, shapes, typed
from bench.options import positive
from bench.peers import OWN_F32, PEERS
from bench.peers.cpuconv_peer import CALLS
from bench.race import Race
from bench.results import LineResult
from bench.settings import ALL, GROUPS, OWN, TYPED, Run, Settings, layout_names
from cpuconv.conv.choice.model import AUTO
from cpuconv.problem.types import ALL_F32, Types


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
        groups=options.words(args.groups, GROUPS, "--groups"),
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
    return options.INTERRUPTED if race.interrupted else 0 if race.results else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("compare", __doc__, *MEASURING, "--lines", "--strategy", "--json")
    add_measuring(p)
    p.add_argument("--threads", type=positive, default=1, help="threads of each engine (1)")
    p.add_argument("--types", type=types, default=ALL_F32, help="f32, bf16, int8, or x:w:y as in u8:s8:f32 (f32)")
    p.add_argument(
        "--weight-bits", type=int, choices=range(2, 1 + typed.W_BITS), default=typed.W_BITS, metavar="N",
        help="bits of integer weights (%(default)s)",
    )  # fmt: skip
    p.add_argument("--draw", type=positive, metavar="N", help="N random lines instead of those of a file")
    p.add_argument("--seed", type=int, default=0, help="seed of --draw (0)")
    p.add_argument("--batch", type=positive, metavar="N", help="batch size of every line, instead of its own")
    p.add_argument("--layouts", default="auto", help="layouts of cpuconv, comma-separated: auto, nchw, ... (auto)")
    p.add_argument("--call", default=CALLS[0], choices=CALLS, help="a plan, or conv2d with writable weights (plan)")
    groups = "; ".join(f"{name}: {', '.join(group)}" for name, group in GROUPS.items())
    p.add_argument("--groups", default="", help=f"columns of the best of a group, comma-separated ({groups})")
    p.add_argument("--targets", action="store_true", help="print which targets are met")
    p.add_argument("--details", action="store_true", help="print roofs, milliseconds, forms and errors")
    p.add_argument("--markdown", type=Path, metavar="FILE", help="write the report")
    return p


MEASURING = ("--rounds", "--peers", "--shapes", "--timeout")  # options that say what to measure and how


def add_measuring(p: argparse.ArgumentParser) -> None:
    """Complete the options that say what to measure and how."""
    p.set_defaults(peers=",".join(GROUPS[ALL]))
    p.add_argument("--runs", type=positive, default=1, help="repetitions; figures are medians over them (1)")
    p.add_argument("--seconds-per-sample", type=float, default=0.2, help="seconds per timing (0.2)")


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
        "peers": options.words(args.peers, [key for key in PEERS if key not in OWN], "--peers"),
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
    options.write_json(args.json, data)
    if args.markdown:
        write_whole({args.markdown: report.markdown(results, run, with_targets=args.targets)})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C: print, and leave no process
    sys.exit(main())
