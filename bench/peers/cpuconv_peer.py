"""cpuconv as a peer: what `plan` makes, or `conv2d` as users write it; networks by `compile`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.peers.base import Form
from cpuconv.problem.problem import ConvProblem

CALLS = ("plan", "conv2d")


class CpuconvPeer:
    """One form for each layout.

    Parameters
    ----------
    layouts : Sequence[str]
        Layouts of input and output; "auto": the plan chooses.
    strategy : str
        Of the plan, call or model.
    call : str
        "plan": a plan with an output of its own. "conv2d": the one call, with writable weights and a new output.
    """

    name = "cpuconv"
    package = "cpuconv"

    def __init__(self, layouts: Sequence[str] = ("auto",), strategy: str = "cached", call: str = CALLS[0]) -> None:
        self.layouts, self.strategy, self.call = tuple(layouts), strategy, call

    def available(self) -> str | None:
        try:
            plan = importlib.import_module("cpuconv").plan
        except (ImportError, AttributeError) as error:
            return f"cpuconv does not import: {error}"
        return None if callable(plan) else "cpuconv has no plan"

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        return [self._form(problem, layout, x, w, bias, threads) for layout in self.layouts]

    def converted(self, path: Path, folder: Path) -> Path:
        return path

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import cpuconv

        model = cpuconv.compile(path, threads=threads, strategy=self.strategy)
        outputs = model.run(feed)
        return [Form("plain", lambda: model.run(feed, outputs), lambda: list(outputs.values()))]

    def _form(
        self, problem: ConvProblem, layout: str, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int
    ) -> Form:
        import cpuconv

        top, bottom, left, right = problem.pads
        arguments = (problem.stride, ((top, bottom), (left, right)), problem.dilation, problem.groups)
        options = {"in_layout": layout, "out_layout": layout, "threads": threads, "strategy": self.strategy}
        plan = cpuconv.plan(x.shape, w, bias, *arguments, **options)
        source = cpuconv.reorder(x, "NCHW", plan.in_layout)
        y = plan(source)
        weight = w.copy()

        def conv2d() -> None:
            nonlocal y
            y = cpuconv.conv2d(source, weight, bias, *arguments, **options)

        def output() -> np.ndarray:
            return cpuconv.reorder(y, plan.out_layout, "NCHW", channels=problem.k)

        plain = plan.in_layout == plan.out_layout == "NCHW"
        detail = f"{plan.in_layout} to {plan.out_layout}"
        run = conv2d if self.call == "conv2d" else lambda: plan(source, out=y)
        return Form(layout, run, output, plain, plan.algorithm, detail)
