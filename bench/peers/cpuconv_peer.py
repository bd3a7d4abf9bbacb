"""cpuconv: plans with packed weights, in the layouts asked for, output written in place."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import numpy as np

from bench.peers.base import Form
from cpuconv.problem import ConvProblem


class CpuconvPeer:
    """cpuconv.plan, one form for each layout in `layouts` ('auto': what the plan likes best)."""

    name = "cpuconv"
    package = "cpuconv"

    def __init__(self, layouts: Sequence[str] = ("auto",), strategy: str = "cached") -> None:
        self.layouts, self.strategy = tuple(layouts), strategy

    def available(self) -> str | None:
        try:
            plan = importlib.import_module("cpuconv").plan
        except (ImportError, AttributeError) as error:
            return f"cpuconv does not import: {error}"
        return None if callable(plan) else "cpuconv has no plan"

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        return [self._form(problem, layout, x, w, bias, threads) for layout in self.layouts]

    def _form(
        self, problem: ConvProblem, layout: str, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int
    ) -> Form:
        import cpuconv

        top, bottom, left, right = problem.pads
        plan = cpuconv.plan(
            x.shape,
            w,
            bias,
            problem.stride,
            ((top, bottom), (left, right)),
            problem.dilation,
            problem.groups,
            in_layout=layout,
            out_layout=layout,
            threads=threads,
            strategy=self.strategy,
        )
        source = cpuconv.reorder(x, "NCHW", plan.in_layout)
        y = plan(source)

        def output() -> np.ndarray:
            return cpuconv.reorder(y, plan.out_layout, "NCHW", channels=problem.k)

        plain = plan.in_layout == plan.out_layout == "NCHW"
        detail = f"{plan.in_layout} to {plan.out_layout}"
        return Form(layout, lambda: plan(source, out=y), output, plain, plan.algorithm, detail)
