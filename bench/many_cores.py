"""Measure how networks and layers scale over the cores of this machine: `python -m bench.many_cores --help`.

Eight networks and twelve layers run on 1, 2, 4, … threads in cpuconv and in ONNX Runtime, PyTorch and OpenVINO, if
installed. Missing network files and kernels are made first, by one process per core; no internet access is needed. The
most important measurements come first; those that the time limit excludes are listed. A profile of each network on all
threads divides its time into parts. Several simultaneous callers are timed with every division of the cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/many_cores.py` works too

from rich.console import Console

from autotune.files import write_whole
from bench import many_cores_page, roofs, shapes
from bench.compare import positive
from bench.models import raced, to_dict
from bench.networks import networks
from bench.networks.problem import NetworkProblem, asked, problems
from bench.precisions import TABLE
from bench.race import Race
from bench.settings import PLAIN, Settings, machine_name
from bench.throughput import images_a_second
from cpuconv.network.reports.profile import Profile
from cpuconv.network.reports.timing import Span
from cpuconv.runtime.threads import maximum_threads

NETWORKS = (
    "resnet50", "resnet18", "mobilenet_v2", "efficientnet_b0", "densenet121", "inception_v1", "convnext_tiny", "u_net",
)  # fmt: skip
LAYERS = (
    "resnet50:(conv1|res2a_2b|res2a_2c|res3b_2b|res4b_2a|res5b_2b|res5b_2c)$|vgg16:conv3_2|mobilenetv2:(dw144|pw144_24)"
    "|inceptionv3:1x7|convnext:dw96"
)
PEERS = ("onnxruntime", "torch", "openvino")
CALLED = ("resnet50", "mobilenet_v2")  # networks of the measurement with several callers
RUNS = 20  # runs of a profile


@dataclass(frozen=True)
class Stage:
    """One table: networks or layers on a number of threads.

    Attributes
    ----------
    kind : str
        "networks" or "layers".
    threads, batch : int
    precision : str
        A key of `bench.precisions.TABLE`.
    """

    kind: str
    threads: int
    batch: int = 1
    precision: str = "float32"

    def __str__(self) -> str:
        return f"{self.kind}, {self.precision}, batch {self.batch}, {self.threads} threads"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write JSON and a page, and print the page."""
    args = parser().parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    console = Console(stderr=True, highlight=False)
    chosen = tuple(filter(None, args.networks.split(","))) or NETWORKS
    found: dict[str, Any] = {"cpu": machine_name(), "cores": maximum_threads(), "threads": args.threads}
    found |= {"seconds": {}, "roofs": {}, "tables": [], "profiles": {}, "callers": {}, "left_out": []}
    planned = stages(args.threads)
    for label, prepare in (("networks", make_networks), ("kernels", compile_kernels)):
        begun = time.monotonic()
        prepare(args.folder, chosen, planned, console)
        found["seconds"][label] = time.monotonic() - begun
        console.print(f"{label}: {found['seconds'][label]:.0f} s")
    paths = {name: args.folder / f"{name}.onnx" for name in chosen if (args.folder / f"{name}.onnx").is_file()}
    called = {name: path for name, path in paths.items() if name in CALLED}
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("roofs", lambda: {count: roofs.measure(count).fma_gflops for count in args.threads}),
        ("profiles", lambda: {name: profiled(path, args.threads) for name, path in paths.items()}),
        *((str(stage), partial(table, stage, args, paths)) for stage in planned),
        ("callers", lambda: {name: callers(path, max(args.threads), args.seconds) for name, path in called.items()}),
    ]
    longest = 0.0
    for label, measure in steps:
        begun = time.monotonic()
        if begun + longest > end:
            found["left_out"].append(label)
            continue
        if label in found:
            found[label] = measure()
        else:
            found["tables"].append(measure())
            longest = max(longest, time.monotonic() - begun)
        found["seconds"][label] = time.monotonic() - begun
        console.print(f"{label}: {time.monotonic() - begun:.0f} s")
        if args.json:
            write_whole({args.json: json.dumps(found, indent=1) + "\n"})
    page = many_cores_page.page(found)
    if args.page:
        write_whole({args.page: page})
    print(page)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.many_cores", description=__doc__)
    p.add_argument("folder", type=Path, metavar="DIR", help="folder of the networks; missing ones are written to it")
    p.add_argument("--networks", default="", metavar="NAMES", help=f"comma-separated ({','.join(NETWORKS)})")
    p.add_argument("--threads", type=_counts, default=_powers(maximum_threads()), help="as 1,2,4 (powers of 2)")
    p.add_argument("--minutes", type=float, default=8.0, help="time limit for starting measurements (8)")
    p.add_argument("--rounds", type=positive, default=3, help="timings of each engine (3)")
    p.add_argument("--seconds", type=float, default=0.1, help="seconds per timing (0.1)")
    p.add_argument("--peers", default=",".join(PEERS), help="comma-separated (%(default)s)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything measured, after each table")
    p.add_argument("--page", type=Path, metavar="FILE", help="write the page, in Markdown")
    return p


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted(map(positive, text.split(","))))


def _powers(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … and `most`."""
    return tuple(sorted({most, *(1 << at for at in range(most.bit_length()) if 1 << at <= most)}))


def stages(threads: Sequence[int]) -> list[Stage]:
    """Return the stages, the most important first: most threads and one, then the numbers between."""
    ends = list(dict.fromkeys((max(threads), min(threads))))
    between = [count for count in sorted(threads, reverse=True) if count not in ends]
    found = [Stage("networks", count) for count in ends]
    found += [Stage("networks", count, precision=name) for name in ("bf16", "int8") for count in ends]
    found += [Stage("layers", count) for count in ends]
    found += [Stage("networks", count) for count in between]
    found += [Stage("networks", count, batch=8) for count in (*ends, *between[:1])]
    found += [Stage("layers", count) for count in between]
    return found + [Stage("networks", count, precision=name) for name in ("bf16", "int8") for count in between]


# --- preparation -----------------------------------------------------------------------------------------------------


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max(1, min(count, maximum_threads())), multiprocessing.get_context("spawn"), _alone)


def _alone() -> None:
    """Restrict a worker process to one core."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CPUCONV_COMPILERS": "1"}


def make_networks(folder: Path, chosen: Sequence[str], planned: Sequence[Stage], console: Console) -> None:
    """Make the missing files of networks, int8 ones included."""
    with _processes(len(chosen)) as pool:
        for name, why in zip(chosen, pool.map(_make, [folder] * len(chosen), chosen), strict=True):
            if why:
                console.print(f"{name}: {why}")


def _make(folder: Path, name: str) -> str:
    """Make a network's files; return why one could not be made, or an empty string."""
    from bench.networks.__main__ import main as make
    from bench.networks.quantized import quantized

    if make([str(folder), "--only", name]):
        return "not made"
    try:
        quantized(networks()[name], folder / f"{name}.onnx")
    except Exception as error:  # ONNX Runtime raises many kinds
        return f"no int8 file: {type(error).__name__}: {error}"
    return ""


def compile_kernels(folder: Path, chosen: Sequence[str], planned: Sequence[Stage], console: Console) -> None:
    """Compile the kernels of all stages into the user's cache, each network in its own processes."""
    tasks = [(folder, name, stage) for stage in planned if stage.kind == "networks" for name in chosen]
    with _processes(len(tasks)) as pool:
        for done in pool.map(_compile, tasks):
            if done:
                console.print(done)


def _compile(task: tuple[Path, str, Stage]) -> str:
    import cpuconv

    folder, name, stage = task
    precision = TABLE[stage.precision]
    try:
        with problems(folder, asked(folder, name), stage.batch, precision.quantized) as found:
            options: dict[str, Any] = {"precision": precision.ours.get("precision", "float32")}
            cpuconv.compile(found[name].path, threads=stage.threads, **options).run(found[name].feed())
    except Exception as error:  # the stage reports it again
        return f"{name}, {stage}: {type(error).__name__}: {error}"
    return ""


# --- measurements ----------------------------------------------------------------------------------------------------


def table(stage: Stage, args: argparse.Namespace, paths: Mapping[str, Path]) -> dict[str, Any]:
    """Measure the engines on one stage; the result has the form of `bench.models.to_dict`."""
    precision, peers = TABLE[stage.precision], tuple(args.peers.split(","))
    common: dict[str, Any] = {"threads": stage.threads, "rounds": args.rounds, "seconds": args.seconds, "roofs": False}
    if stage.kind == "layers":
        lines = shapes.load(pattern=LAYERS)
        race = Race(lines, Settings(**common, peers=peers), Console(stderr=True, quiet=True))
        race.measure_all()
        return {**to_dict(race.results, race.run), **asdict(stage)}
    settings = Settings(
        **common,
        layouts=(PLAIN,),
        batch=stage.batch,
        peers=precision.asked(peers),
        tolerance=precision.tolerance,
        own_tolerance=precision.own_tolerance,
        options=precision.options(),
    )
    with problems(args.folder, asked(args.folder, ",".join(paths)), stage.batch, precision.quantized) as found:
        return {**raced(found, settings)[0], **asdict(stage)}


def profiled(path: Path, threads: Sequence[int]) -> dict[str, Any]:
    """Profile a network on the most threads: parts of a run in seconds, and its slowest operators."""
    import cpuconv

    feed = NetworkProblem(path, path.with_suffix(".npz")).feed()
    most = max(threads)
    one, many = (cpuconv.compile(path, threads=count).profile(feed, RUNS, watch=True) for count in (1, most))
    assert one.watched is not None and many.watched is not None  # because of watch=True
    busy = sum(span.end - span.start for span in one.watched.spans)
    alone = {row.name: row.seconds for row in one.rows}
    rows = [
        {"name": row.name, "op": row.op, "algorithm": row.algorithm, "seconds": row.seconds, "one": alone.get(row.name)}
        for row in sorted(many.rows, key=lambda row: -row.seconds)[:10]
    ]
    return {"one": one.seconds, "seconds": many.seconds, "parts": parts(many, most, busy), "rows": rows}


def parts(profile: Profile, threads: int, busy: float) -> dict[str, float]:
    """Divide the seconds of a watched run into parts, whose sum is the run.

    Parameters
    ----------
    profile : Profile
        A profile with `watched`.
    threads : int
    busy : float
        Seconds that one thread takes for the same work.

    Returns
    -------
    dict of str to float
        work: `busy` over the threads. slower: extra time of the same work because threads share memory and caches.
        imbalance: threads wait for the last one of an operator. serial: operators that one thread runs. joins: time
        between operators, when no thread works. rows: number of operators that threads share.
    """
    assert profile.watched is not None
    by_work: dict[int, list[Span]] = {}
    for span in profile.watched.spans:
        by_work.setdefault(span.work, []).append(span)
    now = serial = shared = shared_busy = joins = 0.0
    count = 0
    for spans in sorted(by_work.values(), key=lambda spans: min(span.start for span in spans)):
        start, end = min(span.start for span in spans), max(span.end for span in spans)
        joins += max(0.0, start - now)
        taken, now = max(0.0, end - max(start, now)), max(now, end)
        if len({span.worker for span in spans}) == 1:
            serial += taken
        else:
            count += 1
            shared += taken
            shared_busy += sum(span.end - span.start for span in spans)
    joins += max(0.0, profile.watched.seconds - now)
    work = min(max(0.0, busy - serial), shared_busy) / threads
    return {
        "work": work,
        "slower": shared_busy / threads - work,
        "imbalance": shared - shared_busy / threads,
        "serial": serial,
        "joins": joins,
        "rows": count,
    }


def callers(path: Path, cores: int, seconds: float) -> dict[str, float]:
    """Return images per second of several callers that use all cores, by "callers x threads"."""
    import cpuconv

    feed = NetworkProblem(path, path.with_suffix(".npz")).feed()
    found = {}
    for count in _powers(cores):
        model = cpuconv.compile(path, threads=max(1, cores // count))
        found[f"{count}x{max(1, cores // count)}"] = max(
            images_a_second(model, feed, count, 3 * seconds) for _ in range(3)
        )
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C, and leave no process
    sys.exit(main())
