"""Compare `torch.compile(backend="cpuconv")` with PyTorch's other ways to run: `python -m bench.torch --help`.

Twelve modules of torchvision, with random weights, one image of 224x224: eager, eager in channels_last, Inductor with
`max_autotune` and frozen weights (whose compilation takes about a minute), OpenVINO's backend, and ours. All are timed
in turns in one process. A way that is missing or fails is left out of a module's row. `--page` merges files of
`--json`: figures of a later file replace those of an earlier one with the same unit and number of threads.
"""

from __future__ import annotations

import importlib
import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from baselib.files import write_whole
from bench import options
from bench.report import replaced

MODULES = (
    "resnet50", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "convnext_tiny", "regnet_y_400mf",
    "shufflenet_v2_x1_0", "squeezenet1_1", "googlenet", "vit_b_16", "swin_t", "deeplabv3_mobilenet_v3_large",
)  # fmt: skip
SIZE = 224  # pixels of a side
SECONDS = 0.2  # duration of one timing
OURS = "cpuconv"
PAGE = Path("docs/pytorch.md")
Call = Callable[[], object]
Figures = dict[str, dict[str, float]]


def main(argv: Sequence[str] | None = None) -> int:
    """Print milliseconds of each module by each way, and the ratio of the best other way to ours."""
    p = options.parser("torch", __doc__, "--rounds", "--json", rounds=5)
    p.add_argument("--threads", type=int, default=1, help="threads of all ways (1)")
    p.add_argument("--modules", default=",".join(MODULES), help="modules of torchvision.models")
    p.add_argument("--ways", help=f"ways among {', '.join(WAYS)}; the last two only by default with --first")
    p.add_argument("--first", action="store_true", help="seconds until the first result, instead of times of calls")
    p.add_argument("--overhead", action="store_true", help="microseconds of one call, and Dynamo's part")
    p.add_argument(
        "--page", nargs="+", type=Path, metavar="FILE", help=f"write the table of {PAGE} from files of --json"
    )
    args = p.parse_args(argv)
    if args.page:
        runs = merged([json.loads(file.read_text()) for file in args.page])
        write_whole({PAGE: replaced(PAGE, table(runs), "torch")})
        return 0
    import torch

    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    if args.overhead:
        print("\n".join(f"{way:10} {each['best'] * 1e3:.1f} us" for way, each in overhead(args.rounds).items()))
        return 0
    ways = args.ways.split(",") if args.ways else [*WAYS] if args.first else COMPARED
    data = {"unit": "s" if args.first else "ms", "threads": args.threads, "modules": {}}
    with torch.no_grad():
        for name in args.modules.split(","):
            torch._dynamo.reset()  # not between ways, whose compiled code it would discard
            calls, first = prepared(name, ways, args.threads)
            data["modules"][name] = first if args.first else timed(calls, args.rounds)
            options.write_json(args.json, data)
    print(table([data]))
    return 0


def merged(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join runs with the same unit and number of threads; modules are in the order of `MODULES`."""
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    for run in runs:
        group = groups.setdefault((run["unit"], run["threads"]), {**run, "modules": {}})
        for name, figures in run["modules"].items():
            group["modules"][name] = group["modules"].get(name, {}) | figures
    for group in groups.values():
        group["modules"] = {name: group["modules"][name] for name in MODULES if name in group["modules"]}
    return [groups[key] for key in sorted(groups)]


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Table of measured runs, and the geometric mean and minimum of the ratios of each."""
    parts = []
    for run in runs:
        found = {way for figures in run["modules"].values() for way in figures}
        ways = [way for way in WAYS if way in found]
        rows, ratios = [], []
        for name, figures in run["modules"].items():
            times = {way: each["median"] for way, each in figures.items()}
            others = [times[way] for way in COMPARED if way in times and way != OURS]
            ratio = min(others) / times[OURS] if others and OURS in times else None
            ratios += [ratio] if ratio else []
            cells = [f"{each:.2f}" if each else "-" for each in (*map(times.get, ways), ratio)]
            rows.append((name, *cells))
        heads = ("module", *(f"{way} {run['unit']}" for way in ways), "ratio")
        parts.append(tabulate(rows, heads, "github", disable_numparse=True))
        if ratios:
            means = f"geometric mean {statistics.geometric_mean(ratios):.2f}, minimum {min(ratios):.2f}"
            parts.append(f"Threads: {run['threads']}. Fastest other way over cpuconv: {means}.")
    return "\n\n".join(parts)


def prepared(name: str, ways: Sequence[str], threads: int) -> tuple[dict[str, Call], Figures]:
    """Calls of a module by each way, compiled, and the seconds until the first result."""
    import torch

    models = importlib.import_module("torchvision.models")
    calls: dict[str, Call] = {}
    first: Figures = {}
    for way in ways:
        torch.manual_seed(0)
        made = {"weights_backbone": None} if name in models.list_models(module=models.segmentation) else {}
        module = models.get_model(name, weights=None, **made).eval()
        try:
            begin = time.perf_counter()
            calls[way] = WAYS[way](module, torch.randn(1, 3, SIZE, SIZE), threads)
            calls[way]()
            seconds = time.perf_counter() - begin
            first[way] = {"best": seconds, "median": seconds}
            calls[way]()
        except Exception as error:  # other packages fail in any way
            calls.pop(way, None)
            print(f"{name}: {way} failed: {str(error)[:120]}")
    return calls, first


def timed(calls: Mapping[str, Call], rounds: int) -> Figures:
    """Best and median milliseconds of each call, timed in turns."""
    times: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(rounds):
        for way, call in calls.items():
            times[way].append(milliseconds(call))
    return {way: {"best": min(each), "median": statistics.median(each)} for way, each in times.items()}


def overhead(rounds: int) -> Figures:
    """Milliseconds of one small convolution by `Model.run`, by a backend of only that, and by the compiled module."""
    import torch

    import cpuconv

    module, x = torch.nn.Conv2d(3, 8, 3).eval(), torch.randn(1, 3, 32, 32)
    model = cpuconv.from_torch(module, (x,), threads=1)
    feed = {model.inputs[0].name: x.numpy()}
    results = [torch.from_numpy(each) for each in model.run(feed).values()]

    def least(captured: Any, inputs: Any) -> Any:
        """A backend whose callable has a fixed input and result: what it adds to `Model.run` is Dynamo's."""
        return lambda *args: (model.run(feed), results)[1]

    with torch.no_grad():
        floor = torch.compile(torch.nn.Conv2d(3, 8, 3).eval(), backend=least)
        calls = {"Model.run": lambda: model.run(feed), "Dynamo": lambda: floor(x), OURS: _ours(module, x, 1)}
        for call in calls.values():
            call()
        return timed(calls, rounds)


def milliseconds(call: Call) -> float:
    """Time of one call, as the mean of calls that take `SECONDS` together. A call before warms caches; the threads of
    the way before, which may still poll, sleep by its end."""
    call()
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) < begin + SECONDS:
        call()
        count += 1
    return (now - begin) / count * 1e3


def _eager(module: Any, x: Any, threads: int) -> Call:
    return lambda: module(x)


def _channels_last(module: Any, x: Any, threads: int) -> Call:
    import torch

    last, image = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return lambda: last(image)


def _inductor(module: Any, x: Any, threads: int) -> Call:
    import torch
    import torch._inductor.config as inductor

    def call() -> object:
        with inductor.patch(freezing=True):  # read when the first call compiles
            return fast(x)

    fast = torch.compile(module, options={"max_autotune": True, "freezing": True})
    call()
    return lambda: fast(x)


def _openvino(module: Any, x: Any, threads: int) -> Call:
    import torch

    importlib.import_module("openvino.torch")
    config = {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1"}
    settings = {"device": "CPU", "config": config, "aot_autograd": True}  # without it, compilation fails in torch 2.14
    fast = torch.compile(module, backend="openvino", dynamic=False, options=settings)
    return lambda: fast(x)


def _export(module: Any, x: Any, threads: int) -> Call:
    import torch

    program = torch.export.export(module, (x,)).module()
    return lambda: program(x)


def _from_torch(module: Any, x: Any, threads: int) -> Call:
    import cpuconv

    model = cpuconv.from_torch(module, (x,), threads=threads)
    return lambda: model(x)


def _ours(module: Any, x: Any, threads: int) -> Call:
    import torch

    if OURS not in torch._dynamo.list_backends():  # the package is not installed
        from cpuconv.integrations.torch_compile.backend import compile_graph

        torch._dynamo.register_backend(compile_graph, name=OURS)
    fast = torch.compile(module, backend=OURS, options={"threads": threads})
    return lambda: fast(x)


WAYS: dict[str, Callable[[Any, Any, int], Call]] = {
    "eager": _eager,
    "channels_last": _channels_last,
    "openvino": _openvino,  # before others that compile, as it cannot compile code for a second time
    "inductor": _inductor,
    OURS: _ours,
    "export": _export,
    "from_torch": _from_torch,
}
COMPARED = tuple(WAYS)[:5]

if __name__ == "__main__":
    raise SystemExit(main())
