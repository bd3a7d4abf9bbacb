"""Compare `torch.compile(backend="cpuconv")` with PyTorch's other ways to run: `python -m bench.torch --help`.

Twelve modules of torchvision, with random weights, one image of 224x224: eager, eager in channels_last, Inductor with
frozen weights, OpenVINO's backend, and ours. All are timed in turns in one process. A way that is missing or fails is
left out of a module's row.
"""

from __future__ import annotations

import importlib
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tabulate import tabulate

from bench import options

MODULES = (
    "resnet50", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "convnext_tiny", "regnet_y_400mf",
    "shufflenet_v2_x1_0", "squeezenet1_1", "googlenet", "vit_b_16", "swin_t", "deeplabv3_mobilenet_v3_large",
)  # fmt: skip
SIZE = 224  # pixels of a side
SECONDS = 0.2  # duration of one timing
OURS = "cpuconv"


def main(argv: Sequence[str] | None = None) -> int:
    """Print milliseconds of each module by each way, and the ratio of the best other way to ours."""
    p = options.parser("torch", __doc__, "--rounds", "--json", rounds=5)
    p.add_argument("--threads", type=int, default=1, help="threads of all ways (1)")
    p.add_argument("--modules", default=",".join(MODULES), help="modules of torchvision.models")
    p.add_argument("--ways", default=",".join(WAYS), help=f"ways among {', '.join(WAYS)}")
    p.add_argument("--first", action="store_true", help="seconds until the first result, instead of times of calls")
    args = p.parse_args(argv)
    import torch

    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    rows, data = [], {}
    with torch.no_grad():
        for name in args.modules.split(","):
            figures = measured(name, args.ways.split(","), args)
            data[name] = figures
            others = [each["median"] for way, each in figures.items() if way != OURS]
            ratio = min(others) / figures[OURS]["median"] if others and OURS in figures else float("nan")
            times = [f"{figures[way]['median']:.2f}" if way in figures else "-" for way in args.ways.split(",")]
            rows.append((name, *times, f"{ratio:.2f}"))
            print("  ".join(rows[-1]), flush=True)
    unit = "s" if args.first else "ms"
    print(
        tabulate(rows, ("module", *(f"{way} {unit}" for way in args.ways.split(",")), "ratio"), disable_numparse=True)
    )
    ratios = [float(row[-1]) for row in rows if row[-1] != "nan"]
    if ratios:
        print(
            f"\nbest of the others over ours: geomean {statistics.geometric_mean(ratios):.2f}, worst {min(ratios):.2f}"
        )
    options.write_json(args.json, {"unit": unit, "threads": args.threads, "modules": data})
    return 0


def measured(name: str, ways: Sequence[str], args: Any) -> dict[str, dict[str, float]]:
    """Best and median time of a module by each way."""
    import torch

    models = importlib.import_module("torchvision.models")
    calls: dict[str, Callable[[], object]] = {}
    first: dict[str, dict[str, float]] = {}
    for way in ways:
        torch._dynamo.reset()
        torch.manual_seed(0)
        made = {"weights_backbone": None} if name in models.list_models(module=models.segmentation) else {}
        module = models.get_model(name, weights=None, **made).eval()
        try:
            begin = time.perf_counter()
            calls[way] = WAYS[way](module, torch.randn(1, 3, SIZE, SIZE), args.threads)
            calls[way]()
            seconds = time.perf_counter() - begin
            first[way] = {"best": seconds, "median": seconds}
            calls[way]()
        except Exception as error:  # other packages fail in any way
            calls.pop(way, None)
            print(f"{name}: {way} failed: {str(error)[:120]}")
    if args.first:
        return first
    rounds: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(args.rounds):
        for way, call in calls.items():
            rounds[way].append(milliseconds(call))
    return {way: {"best": min(times), "median": statistics.median(times)} for way, times in rounds.items()}


def milliseconds(call: Callable[[], object]) -> float:
    """Time of one call, as the mean of calls that take `SECONDS` together."""
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) < begin + SECONDS:
        call()
        count += 1
    return (now - begin) / count * 1e3


def _eager(module: Any, x: Any, threads: int) -> Callable[[], object]:
    return lambda: module(x)


def _channels_last(module: Any, x: Any, threads: int) -> Callable[[], object]:
    import torch

    last, image = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return lambda: last(image)


def _inductor(module: Any, x: Any, threads: int) -> Callable[[], object]:
    import torch
    import torch._inductor.config as inductor

    def call() -> object:
        with inductor.patch(freezing=True):  # read when the first call compiles
            return fast(x)

    fast = torch.compile(module, options={"max_autotune": True, "freezing": True})
    call()
    return lambda: fast(x)


def _openvino(module: Any, x: Any, threads: int) -> Callable[[], object]:
    import torch

    importlib.import_module("openvino.torch")
    config = {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1"}
    fast = torch.compile(module, backend="openvino", options={"device": "CPU", "config": config})
    return lambda: fast(x)


def _ours(module: Any, x: Any, threads: int) -> Callable[[], object]:
    import torch

    if OURS not in torch._dynamo.list_backends():  # the package is not installed
        from cpuconv.integrations.torch_compile.backend import compile_graph

        torch._dynamo.register_backend(compile_graph, name=OURS)
    fast = torch.compile(module, backend=OURS, options={"threads": threads})
    return lambda: fast(x)


WAYS: dict[str, Callable[[Any, Any, int], Callable[[], object]]] = {
    "eager": _eager,
    "channels_last": _channels_last,
    "inductor": _inductor,
    "openvino": _openvino,
    OURS: _ours,
}

if __name__ == "__main__":
    raise SystemExit(main())
