"""cpuconv as an engine: `plan`, or `conv2d` as users call it; networks by `compile`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import layouts
from bench.peers.base import Form
from bench.typed import RANGES, Data, dequantized, quantized
from cpuconv.elements import BF16, F32, S32, to_bfloat16
from cpuconv.memory.aligned import aligned
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32

CALLS = ("plan", "conv2d")


class CpuconvPeer:
    """cpuconv, with one form for each layout.

    Parameters
    ----------
    layouts : Sequence[str]
        Layouts of input and output; "auto": the plan selects them.
    strategy : str
        Strategy of the plan, call or model.
    call : str
        "plan": a plan with a preallocated output. "conv2d": a single call with writable weights and a new output.
    precision : str
        Precision of networks.
    """

    name = "cpuconv"
    package = "cpuconv"

    def __init__(
        self,
        layouts: Sequence[str] = ("auto",),
        strategy: Any = "cached",
        call: str = CALLS[0],
        precision: Any = "float32",
    ) -> None:
        self.layouts, self.strategy, self.call, self.precision = tuple(layouts), strategy, call, precision

    def available(self) -> str | None:
        try:
            plan = importlib.import_module("cpuconv").plan
        except (ImportError, AttributeError) as error:
            return f"cpuconv does not import: {error}"
        return None if callable(plan) else "cpuconv has no plan"

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        return [self._form(problem, layout, x, w, bias, threads) for layout in self.layouts]

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        import cpuconv

        x, w = (outside(array) for array in (given.x, given.w))
        options: dict[str, Any] = {"x_dtype": x.dtype, "y_dtype": problem.types.y.outside}
        if (scales := given.scales) is not None:
            asked: dict[str, Any] = {
                "x_scale": scales.x_scale,
                "x_zero_point": scales.x_zero,
                "w_scale": scales.w_scale,
            }
            if problem.types.y in RANGES:
                asked |= {"y_scale": scales.y_scale, "y_zero_point": scales.y_zero}
            options["quantization"] = cpuconv.Quantization(**asked)
        return [self._form(problem, layout, x, w, given.bias, threads, **options) for layout in self.layouts]

    def converted(self, path: Path, folder: Path) -> Path:
        return path

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import cpuconv

        model = cpuconv.compile(path, threads=threads, strategy=self.strategy, precision=self.precision)
        outputs = model.run(feed)
        fixed = {port.name for port in model.outputs if port.shape and all(type(size) is int for size in port.shape)}
        out = {name: array for name, array in outputs.items() if name in fixed}
        return [Form("plain", lambda: model.run(feed, out), lambda: list(outputs.values()))]

    def _form(
        self, problem: ConvProblem, layout: str, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int,
        **typed: Any,
    ) -> Form:  # fmt: skip
        """Prepare a form; `typed` has the types and scales of a problem in other types than float32."""
        import cpuconv

        top, bottom, left, right = problem.pads
        arguments = (problem.stride, ((top, bottom), (left, right)), problem.dilation, problem.groups)
        options: dict[str, Any] = {"in_layout": layout, "out_layout": layout, "threads": threads}
        options |= {"strategy": self.strategy, **typed}
        plan = cpuconv.plan(x.shape, w, bias, *arguments, **options)
        moved = layouts.from_nchw(x, plan.in_layout)
        source = aligned(moved.shape, moved.dtype)
        source[...] = moved
        y = plan(source)
        weight = w.copy()

        def conv2d() -> None:
            nonlocal y
            y = cpuconv.conv2d(source, weight, bias, *arguments, **options)

        def output() -> np.ndarray:
            channels = problem.k if plan.out_layout.startswith("NCHW") and plan.out_layout != "NCHW" else None
            plain = layouts.to_nchw(np.asarray(y), plan.out_layout, channels)
            return np.ascontiguousarray(plain).view(problem.types.y.dtype)

        plain = plan.in_layout == plan.out_layout == "NCHW"
        detail = f"{plan.in_layout} to {plan.out_layout}"
        run = conv2d if self.call == "conv2d" else lambda: plan(source, out=y)
        return Form(layout, run, output, plain, plan.algorithm, detail)


class OwnFloat32Peer(CpuconvPeer):
    """cpuconv in float32 on the dequantised operands: the baseline of low precision."""

    name = "own fp32"
    full = True  # for int8 networks it runs their float32 originals

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        return []

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        arrays = dequantized(given)
        forms = super().prepare(replace(problem, types=ALL_F32), *arrays, threads)
        return [replace(form, output=_converted(form.output, problem, given)) for form in forms]


def _converted(output: Callable[[], Any], problem: ConvProblem, given: Data) -> Callable[[], np.ndarray]:
    """Wrap `output` to convert its float32 result to the problem's output type."""

    def converted() -> np.ndarray:
        y, element = output(), problem.types.y
        if given.scales is None or element == F32:
            return to_bfloat16(y) if element == BF16 else y.astype(element.dtype) if element.half else y
        if element == S32:
            return np.rint(y / given.scales.sums[:, None, None]).astype(np.int32)
        return quantized(y / given.scales.y_scale, given.scales.y_zero, element).astype(element.dtype)

    return converted


def outside(array: np.ndarray) -> np.ndarray:
    """Return an array with the dtype that users pass: bfloat16 of the package ml_dtypes."""
    return array.view(BF16.outside) if array.dtype == BF16.dtype else array
