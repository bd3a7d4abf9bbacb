"""Where the time of a network goes: each operator timed alone, beside whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from tabulate import tabulate

from autotune.machine.roofline import Roofs, classify
from autotune.machine.roofline import Work as Least
from cpuconv.choice.tuned import roofs
from cpuconv.graph.executable import Executable, Work
from cpuconv.graph.explain import EVALUATOR, REFERENCE, algorithm, forms, shortened
from cpuconv.graph.ir import Node


@dataclass(frozen=True)
class ProfileRow:
    """One operator.

    Attributes
    ----------
    name, op, algorithm, layouts : str
    seconds : float
        Median of its runs, alone.
    share : float
        Of all operators' seconds.
    gflops : float or None
        1e9 operations a second, of the direct sum; None where operations are not counted.
    gbs : float
        1e9 bytes a second, of inputs, outputs and weights, once each.
    bound : str
        By the roofline: compute, bandwidth or overhead; "" where this device's roofs were not measured.
    """

    name: str
    op: str
    algorithm: str
    layouts: str
    seconds: float
    share: float
    gflops: float | None
    gbs: float
    bound: str


@dataclass(frozen=True)
class Profile:
    """Operators in the order in which they run.

    Attributes
    ----------
    rows : list of ProfileRow
    seconds : float
        Median of whole runs; the sum of the rows is larger by the cost of starting each alone.
    """

    rows: list[ProfileRow]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def __str__(self) -> str:
        table = [
            (
                shortened(row.name), row.op, row.algorithm, row.layouts, f"{row.seconds * 1e6:.1f}", f"{row.share:.1%}",
                "" if row.gflops is None else f"{row.gflops:.1f}", f"{row.gbs:.1f}", row.bound,
            )
            for row in self.rows
        ]  # fmt: skip
        heads = ("operator", "kind", "algorithm", "layouts", "µs", "share", "GFLOP/s", "GB/s", "bound by")
        total = sum(row.seconds for row in self.rows)
        end = f"whole run {self.seconds * 1e3:.3f} ms, operators alone {total * 1e3:.3f} ms"
        return f"{tabulate(table, heads, disable_numparse=True)}\n{end}"


def together(profiles: Sequence[Profile]) -> Profile:
    """Parts of a network that run one after another, as one."""
    rows = [row for each in profiles for row in each.rows]
    total = sum(row.seconds for row in rows)
    rows = [replace(row, share=row.seconds / total if total else 0.0) for row in rows]
    return Profile(rows, sum(each.seconds for each in profiles))


def of_references(figures: Sequence[tuple[Node, Sequence[tuple[float, int]]]]) -> Profile:
    """Nodes that references compute, each with its seconds and bytes in some runs; their shares are yet to be found."""
    rows = []
    for node, runs in figures:
        seconds, size = (float(np.median(column)) for column in zip(*runs, strict=True))
        by = REFERENCE if node.meaning is None else EVALUATOR
        name = node.origin or next(filter(None, node.outputs))
        rows.append(ProfileRow(name, node.op, by, "dense -> dense", seconds, 0.0, None, size / seconds * 1e-9, ""))
    return Profile(rows, sum(row.seconds for row in rows))


def profile(executable: Executable, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], runs: int) -> Profile:
    """Time the operators of a network `runs` times, each alone, in turns with whole runs."""
    seconds, whole = executable.time_works(arrays, outputs, runs)
    each = np.median(seconds, axis=0)
    known = roofs(executable.target.threads)
    rows = [
        _row(work, float(time), float(each.sum()), known) for work, time in zip(executable.works, each, strict=True)
    ]
    return Profile(rows, float(np.median(whole)))


def _row(work: Work, seconds: float, total: float, known: Roofs | None) -> ProfileRow:
    node = work.laid.node
    flops = getattr(work.laid.offer.detail, "flops", None) if work.laid.offer is not None else None
    least = Least(flops or 0, work.inputs, work.weights, work.outputs)
    return ProfileRow(
        name=node.origin or next(filter(None, node.outputs)),
        op=node.op,
        algorithm=algorithm(work.laid),
        layouts=forms(work.laid),
        seconds=seconds,
        share=seconds / total if total else 0.0,
        gflops=None if flops is None else flops / seconds * 1e-9,
        gbs=(work.inputs + work.weights + work.outputs) / seconds * 1e-9,
        bound="" if known is None else str(classify(least, known, seconds)),
    )
