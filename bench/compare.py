"""cpuconv beside PyTorch, ONNX Runtime, OpenVINO, ncnn and MNN: `python -m bench.compare --help`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/compare.py` works too

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench import report, shapes
from bench.engine import Engine, EngineError
from bench.oracle import OUR_TOLERANCE, PEER_TOLERANCE
from bench.peers import OURS, PEERS
from bench.results import LineResult, Timing, mean_ratio

README = Path(__file__).resolve().parents[1] / "README.md"
HOPELESS = 2.0  # a form this many times slower than its engine's best in the first round is not timed again
PLAIN = {"nchw": "NCHW", "nhwc": "NHWC"}
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; 0 on success, 1 without an engine or a line, 130 when interrupted."""
    args = parser().parse_args(argv)
    console = Console(stderr=True)
    results: list[LineResult] = []
    engines: list[Engine] = []
    interrupted = False
    lines = shapes.load(args.shapes, args.lines)
    try:
        engines += start(args, console)
        with _progress(console) as bar:
            task = bar.add_task("", total=len(lines) * args.rounds, note="")
            for line in lines:
                bar.update(task, description=line.label)
                results.append(LineResult(line))
                measure(results[-1], engines, args.rounds, args.seconds_per_sample, lambda: bar.advance(task))
                bar.update(task, note=_so_far(results, engines), completed=len(results) * args.rounds)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for engine in engines:
            engine.close()
    results = [result for result in results if any(result.of(engine.key) for engine in engines) or result.notes]
    if not results:
        console.print("Nothing was measured.")
        return INTERRUPTED if interrupted else 1
    publish(results, engines, args)
    return INTERRUPTED if interrupted else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    p.add_argument("--threads", type=int, default=1, help="threads of each engine (1)")
    p.add_argument("--rounds", type=int, default=5, help="times that each engine is asked per line (5)")
    p.add_argument("--seconds-per-sample", type=float, default=0.2, help="time spent at each asking (0.2)")
    p.add_argument("--peers", default=",".join(k for k in PEERS if k != OURS), help="comma-separated (%(default)s)")
    p.add_argument("--lines", default="", metavar="REGEX", help="only lines whose name or problem matches")
    p.add_argument("--shapes", type=Path, default=shapes.CANONICAL, metavar="FILE", help="benchdnn problem strings")
    p.add_argument("--layouts", default="auto", help="layouts of cpuconv, comma-separated: auto, nchw, ... (auto)")
    p.add_argument("--strategy", default="cached", choices=("cached", "heuristic", "profile"), help="of cpuconv")
    p.add_argument("--timeout", type=float, default=600.0, help="seconds before an engine is given up (600)")
    p.add_argument("--details", action="store_true", help="print milliseconds, forms and errors of every engine")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    p.add_argument("--markdown", type=Path, metavar="FILE", help="write the report")
    p.add_argument("--update-readme", action="store_true", help="replace the table in README.md")
    return p


def start(args: argparse.Namespace, console: Console) -> list[Engine]:
    """The engines that are installed, ours first; a missing one gets a word."""
    keys = [OURS, *(key for key in args.peers.split(",") if key and key != OURS)]
    if unknown := set(keys) - set(PEERS):
        raise SystemExit(f"Argument '--peers' must be of {', '.join(PEERS)}, not {', '.join(sorted(unknown))}.")
    layouts = [PLAIN.get(name, name) for name in args.layouts.split(",")]
    options = {OURS: {"layouts": layouts, "strategy": args.strategy}}
    engines = []
    for key in keys:
        try:
            engines.append(Engine(key, args.threads, options.get(key), args.timeout))
        except EngineError as error:
            console.print(f"Skipping {key}: {error}.", highlight=False)
    return engines


def measure(
    result: LineResult, engines: Sequence[Engine], rounds: int, seconds: float, step: Callable[[], object]
) -> None:
    """Time every engine on one line, in turn, filling `result`; a failing engine leaves a note and loses the line."""
    for engine in engines:
        with _noting(result, engine):
            engine.revive()
            prepared = engine.prepare(result.line.problem)
            limit = OUR_TOLERANCE if engine.key == OURS else PEER_TOLERANCE
            right = [p for p in prepared if p.error <= limit]
            wrong = [p for p in prepared if p.error > limit]
            result.notes += [f"{engine.name}'s {p.form} is wrong by {p.error:.1e} {p.detail}".rstrip() for p in wrong]
            result.forms[engine.key] = [Timing(p.form, p.detail, p.error) for p in right]
    for turn in range(rounds):
        shift = turn % max(1, len(engines))  # no engine always follows the same one
        for engine in (*engines[shift:], *engines[:shift]):
            with _noting(result, engine):
                for timing in _worth_timing(result.forms.get(engine.key, []), turn):
                    timing.rounds.append(engine.time(timing.form, seconds))
        step()


def _worth_timing(forms: list[Timing], turn: int) -> list[Timing]:
    if turn == 0:
        return forms
    limit = HOPELESS * min((form.median for form in forms if form.rounds), default=0.0)
    return [form for form in forms if len(form.rounds) == turn and form.median <= limit]


class _noting:
    """Turns an engine's failure into a note, and takes its figures off the line."""

    def __init__(self, result: LineResult, engine: Engine) -> None:
        self.result, self.engine = result, engine

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, EngineError):
            return False
        self.result.forms.pop(self.engine.key, None)
        self.result.notes.append(f"{self.engine.name} failed: {error}")
        return True


def publish(results: list[LineResult], engines: Sequence[Engine], args: argparse.Namespace) -> None:
    """Print the report and write the files asked for."""
    run = report.Run(
        names={engine.key: engine.name for engine in engines},
        versions={engine.key: engine.version for engine in engines},
        threads=args.threads,
        rounds=args.rounds,
        seconds=args.seconds_per_sample,
        strategy=args.strategy,
        layouts=args.layouts,
    )
    print(report.lines_table(results, run, "simple"), report.summary_table(results, run, "simple"), sep="\n\n")
    print("", *report.remarks(results, run), sep="\n")
    if args.details:
        print("", report.details_table(results, run, "simple"), sep="\n")
    if args.json:
        args.json.write_text(json.dumps(report.to_dict(results, run), indent=1) + "\n", encoding="utf-8")
    if args.markdown:
        args.markdown.write_text(report.markdown(results, run), encoding="utf-8")
    if args.update_readme:
        report.update_readme(README, report.markdown(results, run, details=False))


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console)


def _so_far(results: Sequence[LineResult], engines: Sequence[Engine]) -> str:
    ratio = mean_ratio(results, [engine.key for engine in engines])
    return f"× best peer {ratio.median:.2f}" if ratio else ""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C: print, and leave no process
    sys.exit(main())
