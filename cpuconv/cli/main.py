"""Command line of cpuconv."""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import cpuconv
from autotune.cli.options import FAILED, INTERRUPTED, OK, USAGE, new_file, positive, printed, say, threads
from autotune.cli.parsing import Parser, add_version
from autotune.cli.wide import WIDE, on_screen
from baselib.files import write_whole
from baselib.screen import as_text, terminal_width
from baselib.signals import interrupts_arrive
from baselib.text import count_of
from cpuconv.api.network import THROUGHPUT
from cpuconv.api.precision import AUTO
from cpuconv.cli import executing, quantizing
from cpuconv.cli.arguments import engine_names, folder
from cpuconv.cli.benchmarking import at_batch, batch_sizes, benchmark, runs_in_streams
from cpuconv.cli.feeds import RANDOM, divided, drawn, loaded, shapes, with_pictures
from cpuconv.cli.model_options import add_inputs, add_model_options
from cpuconv.cli.naming import in_options
from cpuconv.cli.other_engines import ENGINES, Engine, prepared
from cpuconv.cli.profile_page import page
from cpuconv.cli.progress import bar
from cpuconv.cli.results import save, summaries, table
from cpuconv.cli.trace import trace
from cpuconv.conv.choice.model import ACCURACIES, STRATEGIES
from cpuconv.conv.choice.target import PRECISIONS
from cpuconv.errors import ArgumentError, CpuconvError, must
from cpuconv.graph.ir import Graph
from cpuconv.network.model import Model
from cpuconv.network.reports.onnx_graph import onnx_graph
from cpuconv.network.saved.container import is_saved
from cpuconv.network.saved.reading import Saved
from cpuconv.network.sizes.specialise import with_sizes
from cpuconv.reading.onnx_reader import read
from cpuconv.runtime.threads import check_threads

_EPILOG = f"""exit codes:
  {OK:3}  done
  {FAILED:3}  failed: a file cannot be written
  {USAGE:3}  wrong usage, or a model or an input that cannot be read
  {INTERRUPTED:3}  interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args(arguments)
    if options.command is executing.execute:
        return executing.execute(options)  # the program's errors and warnings are printed as Python does
    try:
        with interrupts_arrive(), _warnings_in_a_line():
            return printed(lambda: options.command(options) or OK)
    except CpuconvError as error:
        return _say(in_options(str(error), options), USAGE)
    except OSError as error:
        return _say(str(error), FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)


def _run(options: argparse.Namespace) -> None:
    model, feed = _fed(options)
    with _busy(f"running {options.model}"):
        results = model.run(feed)  # untimed run: compiles kernels and touches memory
    begun = time.perf_counter()
    results = model.run(feed, results)
    seconds = time.perf_counter() - begun
    sources = dict.fromkeys(feed, RANDOM) | dict(options.input)
    sources |= {name: ", ".join(options.image) for name in model.images if options.image}
    arrays = {name: np.asarray(each[0] if isinstance(each, list) else each) for name, each in feed.items()}
    inputs = [{**each, "from": sources[each["name"]]} for each in summaries(arrays)]
    outputs = summaries(results)
    files = {} if options.output is None else save(results, options.output)
    if options.json:
        written = {name: str(path) for name, path in files.items()}
        content = {"inputs": inputs, "outputs": outputs, "files": written}
        _print_json({"threads": model.threads, "seconds": seconds, **content})
        return
    width = None if options.wide else terminal_width()
    print(as_text(iter([table("input", inputs), table("output", outputs)]), width, WIDE), end="\n\n")
    print(f"second run: {seconds * 1e3:.3f} ms on {count_of(model.threads, 'thread')}")
    for path in files.values():
        print(path)


def _profile(options: argparse.Namespace) -> None:
    model, feed = _fed(options)
    watch = options.html is not None or options.trace is not None
    report = model.profile(feed, options.runs, watch=watch)
    if report.note and _roofs_again(report.threads):
        report = model.profile(feed, options.runs, watch=watch)
    forms = {options.html: page, options.trace: trace}
    write_whole({file: form(Path(options.model).stem, report) for file, form in forms.items() if file is not None})
    _print(options, report)


def _benchmark(options: argparse.Namespace) -> int:
    if is_saved(options.model) and options.against:
        raise ArgumentError(must("path", "an ONNX file where --against is given", options.model))
    if options.batch is not None:
        options.shape = [*batch_sizes(_graph(options), options.batch).items(), *options.shape]
    if isinstance(options.streams, int):
        options.threads = max(1, check_threads(None if options.threads == AUTO else options.threads) // options.streams)
    model, feed = _fed(options)
    if options.against:  # other engines take arrays, so that all get the same
        feed, model.pictures = model.prepare(feed), None
    streams = model.streams if options.streams == AUTO else options.streams or 1
    run = model.run if options.streams is None else runs_in_streams(model, streams)
    name = f"cpuconv {cpuconv.__version__} ({options.precision or PRECISIONS[0]})"
    own = Engine(name, lambda: lambda: run(feed))
    with _busy(f"compiling {options.model} in {', '.join(options.against) or 'cpuconv'}"):
        others = [prepared(name, options.model, feed, model.threads, streams) for name in options.against]
    with bar(f"benchmark of {options.model}", refresh=False) as progress:
        timing = {name: getattr(options, name) for name in ("duration", "warmup")}
        counts = {"threads": model.threads, "streams": streams, "callers": max(options.callers, streams)}
        report = benchmark([own, *others], model.prepare(feed), progress=progress, **counts, **timing)
    if options.csv is not None:
        write_whole({options.csv: report.to_csv()})
    _print(options, report)
    return INTERRUPTED if report.interrupted else OK


def _roofs_again(threads: int) -> bool:
    """Measure the roofs again for this thread count, as some rows exceed them; return whether they were stored."""
    from autotune.report.doctor import measure  # imports the whole tuner
    from autotune.store.store import Store
    from cpuconv.tuning.workload import workload

    _say("rows above the roofs, which were measured while the machine was busy: measuring these again", OK)
    try:
        measure(workload, Store(None), counts=[threads], keep_higher=True)
    except (OSError, sqlite3.Error) as error:
        _say(f"the roofs cannot be stored: {error}", OK)
        return False
    return True


def _explain(options: argparse.Namespace) -> None:
    model = _compiled(options, {})
    report = model.explain()
    if options.onnx is not None:
        write_whole({options.onnx: onnx_graph(report, model.inputs, model.outputs)})
    if options.precision != AUTO:
        _print(options, report)
    elif options.json:
        _print_json({**report.to_dict(), "precision_table": model.precision_table().to_dict()})
    else:
        print(f"{on_screen(report, options)}\n\n{on_screen(model.precision_table(), options)}")


def _compile(options: argparse.Namespace) -> None:
    graph = _graph(options)
    own, symbols = divided(graph, dict(options.shape))
    model = _ready(options, with_sizes(graph, symbols), own)
    with _busy(f"writing {options.output}"):
        model.save(options.output, kernels=options.kernels)
    size = options.output.stat().st_size
    if options.json:
        _print_json({"file": str(options.output), "bytes": size, "threads": model.threads})
    else:
        print(f"{options.output}: {size / 1e6:.2f} MB, for {count_of(model.threads, 'thread')}")


def _fed(options: argparse.Namespace) -> tuple[Model, dict[str, Any]]:
    """Return the model for the inputs given in the options, and its feed."""
    files = dict(options.input)
    given = {name: loaded(name, file) for name, file in files.items() if file != RANDOM}
    model = _compiled(options, given, list(files))
    pictures: dict[str, Any] = with_pictures(model, options.image, options.preset)
    if model.pictures is not None:
        pictures = {**model.pictures.examples(), **pictures}
    return model, drawn(model.inputs, {**given, **pictures}, options.seed)


def _compiled(options: argparse.Namespace, given: Mapping[str, np.ndarray], named: Sequence[str] = ()) -> Model:
    """Compile the model for the sizes in the options or those of the given arrays."""
    graph = _graph(options)
    return _ready(options, graph, shapes(graph, dict(options.shape), given, named))


def _graph(options: argparse.Namespace) -> Graph:
    """Read the graph; a saved model of fixed sizes has a placeholder graph."""
    with _busy(f"reading {options.model}"):
        if is_saved(options.model):
            return Saved(options.model).graph
        return at_batch(read(options.model), getattr(options, "batch", None), dict(options.shape))


def _ready(options: argparse.Namespace, graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Model:
    """Compile or load the model; sizes are fixed as far as `shapes` has them."""
    common: dict[str, Any] = {"threads": options.threads, "input_shapes": shapes}
    if options.precision == AUTO and not is_saved(options.model):
        return _chosen(options, graph, common)
    _check_auto(options)
    with _busy(f"compiling {options.model}"):
        if is_saved(options.model):
            if getattr(options, "streams", None) == AUTO:
                raise ArgumentError(must("--streams", "a number for a model that is compiled already", AUTO))
            if options.strict:
                raise ArgumentError(must("--strict", "left out for a model that is compiled already", "given"))
            if options.node_precision:
                raise ArgumentError(must("--node-precision", "left out for a model that is compiled already", "given"))
            given = {name: getattr(options, name) for name in ("strategy", "accuracy", "precision")}
            return cpuconv.load(options.model, trust_kernels=options.trust_kernels, **given, **common)
        if options.trust_kernels:
            raise ArgumentError(must("--trust-kernels", "left out where the model is an ONNX file", "given"))
        common |= {"precision": options.precision or PRECISIONS[0], "node_precisions": dict(options.node_precision)}
        if getattr(options, "streams", None) == AUTO:
            common["hint"] = THROUGHPUT
        return cpuconv.compile(graph, **_choices(options), **common)


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    strategy, accuracy = options.strategy or STRATEGIES[1], options.accuracy or ACCURACIES[1]
    return {"strategy": strategy, "accuracy": accuracy, "strict": options.strict}


def _chosen(options: argparse.Namespace, graph: Graph, common: dict[str, Any]) -> Model:
    """Compile the model with precisions chosen by samples."""
    each = dict(options.node_precision) or None
    with bar(f"compiling {options.model}") as progress:
        return cpuconv.compile(
            graph, precision="auto", tolerance=options.tolerance, samples=options.samples, node_precisions=each,
            progress=progress, **_choices(options), **common,
        )  # fmt: skip


def _check_auto(options: argparse.Namespace) -> None:
    for name in ("tolerance", "samples"):
        if getattr(options, name) is not None and options.precision != AUTO:
            raise ArgumentError(must(f"--{name}", f"left out where --precision is not {AUTO}", "given"))


def _print(options: argparse.Namespace, report: Any) -> None:
    """Print a profile or an explanation, as JSON or text."""
    if options.json:
        _print_json(report.to_dict())
    else:
        print(on_screen(report, options))


def _print_json(content: object) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=False))


def _say(message: str, code: int) -> int:
    return say(" ".join(message.split()), code, "cpuconv")


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Print cpuconv's warnings in the format of its errors."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, cpuconv.CpuconvWarning):
                _say(str(message), OK)
            else:
                shown(message, category, *place, **more)

        warnings.simplefilter("always", cpuconv.CpuconvWarning)
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _busy(what: str) -> Iterator[None]:
    """Show a status line on a terminal; not used during timed runs, as it would slow them down."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what, refresh_per_second=4):
        yield


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="cpuconv",
        description="Run networks from ONNX files on this CPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str, compiles: bool = True) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=help, description=help, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        made.set_defaults(command=run)
        if compiles:
            add_model_options(made)
        return made

    made = command("run", _run, "run a network on given or random inputs, and print its outputs")
    add_inputs(made)
    made.add_argument("--output", metavar="DIR", type=folder, help="write each output to DIR/NAME.npy; all or none")

    made = command("profile", _profile, "time every operator of a network")
    add_inputs(made)
    made.add_argument("--runs", metavar="N", type=positive(int), default=20, help="runs timed (default: 20)")
    made.add_argument(
        "--html",
        metavar="FILE",
        type=new_file,
        help="also write an HTML page with a timeline of a run (may be combined with --json)",
    )

    made.add_argument(
        "--trace",
        metavar="FILE",
        type=new_file,
        help="also write the timeline of a run in Chrome's trace format, for Perfetto",
    )

    made = command("benchmark", _benchmark, "time a network: latency percentiles and throughput next to other engines")
    add_inputs(made)
    made.add_argument(
        "-d", "--duration", metavar="SECONDS", type=positive(float), default=5.0,
        help="timed seconds per engine (default: 5)",
    )  # fmt: skip
    made.add_argument(
        "--warmup", metavar="SECONDS", type=positive(float), default=0.5,
        help="untimed seconds per engine before (default: 0.5)",
    )  # fmt: skip
    made.add_argument(
        "--callers", metavar="N", type=positive(int), default=1, help="concurrent callers, each in a loop (default: 1)"
    )
    made.add_argument(
        "--streams", metavar="N", type=threads,
        help="concurrent runs, on cores of their own, with a caller and an equal part of the threads each; auto: the"
        " number with most runs per second",
    )  # fmt: skip
    made.add_argument("--batch", metavar="N", type=positive(int), help="size of the first axis of every input")
    made.add_argument(
        "--against",
        metavar="NAME,…",
        type=engine_names,
        default=(),
        help=f"installed engines that run the same ONNX file on the same inputs, in turns: {', '.join(ENGINES)}",
    )
    made.add_argument("--csv", metavar="FILE", type=new_file, help="also write the figures as CSV")

    made = command("compile", _compile, "write a compiled network to a file, which loads faster and without onnx")
    made.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the file to write")
    made.add_argument(
        "--kernels",
        action="store_true",
        help="also store the machine code of its kernels, for CPUs with this one's features",
    )

    quantizing.add_options(command("quantize", quantizing.run, quantizing.HELP, compiles=False))
    executing.add_options(command("exec", executing.execute, executing.HELP, compiles=False))

    made = command("explain", _explain, "describe a compiled network: rewrites, layouts, algorithms, memory")
    made.add_argument(
        "--onnx",
        metavar="FILE",
        type=new_file,
        help="also write the rewritten network, without weights, as an ONNX file for viewers such as Netron",
    )
    return parser
