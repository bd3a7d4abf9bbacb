"""Profile of a network: times of single operators and of whole runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from autotune.machine.roofline import Roofs, Work, busy_note, classify
from baselib.data_classes import dataclass
from baselib.screen import Column, Report, Table
from baselib.text import number
from cpuconv.conv.choice.tuned import roofs
from cpuconv.conv.least_work import work_of
from cpuconv.graph.ir import Node
from cpuconv.network.reports.explain import COPY, algorithm, choice_of, forms, reference_of
from cpuconv.network.reports.timing import Watched, time_operations, watch_run
from cpuconv.network.running.executable import CompiledNode, Executable

COLUMNS = (
    Column("operator", least=10, keeps_end=True),
    Column("kind", rank=3, least=8),
    Column("types", rank=9),
    Column("algorithm", rank=5, least=12),
    Column("layouts", rank=8),
    Column("µs", True),
    Column("share", True, rank=1),
    Column("GFLOP/s", True, rank=6),
    Column("GB/s", True, rank=7),
    Column("of roof", True, rank=2),
    Column("bound by", rank=4),
)


@dataclass(frozen=True)
class ProfileRow:
    """One operator of a profile.

    Attributes
    ----------
    name, op, types, algorithm, layouts : str
    seconds : float
        Median time of its separate runs.
    share : float
        Fraction of the time of all operators.
    gflops : float or None
        1e9 operations of the direct sum per second; None if operations are not counted. An algorithm with fewer
        multiplications, such as Winograd's, may exceed the peak.
    gbs : float
        1e9 bytes per second, counting inputs, outputs and weights once.
    bound : str
        Limit by the roofline: compute, bandwidth or overhead; "" if this device's roofs were not measured.
    roof : str
        The nearest roof; "" if none was measured.
    roof_share : float or None
        Minimum time under this roof relative to the measured time. For a convolution, the operations are those that its
        algorithm executes, at the peak of the type in which it multiplies, as in `autotune table`.
    shape : tuple of int
        Shape of the first output.
    host : bool
        Whether a reference computes it, between kernels.
    """

    name: str
    op: str
    types: str
    algorithm: str
    layouts: str
    seconds: float
    share: float
    gflops: float | None
    gbs: float
    bound: str
    roof: str
    roof_share: float | None
    shape: tuple[int, ...]
    host: bool

    @property
    def kind(self) -> str:
        """Kind of the operator: "reorder", "reference", its limit by the roofline, or "kernel" if that is unknown."""
        return "reorder" if self.op == COPY else "reference" if self.host else self.bound.split(" ")[0] or "kernel"

    def cells(self) -> tuple[str, ...]:
        """The cells of the row as text, in the order of `COLUMNS`."""
        return (
            self.name, self.op, self.types, self.algorithm, self.layouts, f"{self.seconds * 1e6:.1f}",
            f"{self.share:.1%}", number(self.gflops, ".1f"), f"{self.gbs:.1f}", number(self.roof_share, ".0%"),
            self.bound,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Profile(Report):
    """Times of operators, in the order of execution.

    Attributes
    ----------
    rows : list of ProfileRow
    seconds : float
        Median time of whole runs; the sum of the rows is larger by the cost of starting each operator separately.
    threads : int
    watched : Watched or None
        Timeline of the workers in a run with timed kernels, if requested; `Span.work` is an index in `rows`.
    """

    rows: list[ProfileRow]
    seconds: float
    threads: int
    watched: Watched | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    @property
    def note(self) -> str | None:
        """A note if shares of roofs are impossibly high; otherwise None."""
        return busy_note(row.roof_share for row in self.rows)

    def blocks(self) -> Iterator[str | Table]:
        """The printed table and text."""
        yield Table(COLUMNS, [row.cells() for row in self.rows])
        total = sum(row.seconds for row in self.rows)
        yield f"whole run {self.seconds * 1e3:.3f} ms, operators alone {total * 1e3:.3f} ms"
        if self.note:
            yield self.note


def combined(profiles: Sequence[Profile]) -> Profile:
    """Combine the profiles of consecutive parts of a network; the first part may have a timeline."""
    rows = [row for each in profiles for row in each.rows]
    total = sum(row.seconds for row in rows)
    rows = [replace(row, share=row.seconds / total if total else 0.0) for row in rows]
    first = profiles[0]
    return Profile(rows, sum(each.seconds for each in profiles), first.threads, first.watched)


def of_references(figures: Sequence[tuple[Node, Sequence[tuple[float, int]]]]) -> Profile:
    """Profile of nodes that references compute, from seconds and bytes of some runs; shares are set later."""
    rows = []
    for node, runs in figures:
        seconds, size = (float(np.median(column)) for column in zip(*runs, strict=True))
        name = node.origin or next(filter(None, node.outputs))
        rows.append(
            ProfileRow(
                name=name,
                op=node.op,
                types="",
                algorithm=reference_of(node),
                layouts="dense -> dense",
                seconds=seconds,
                share=0.0,
                gflops=None,
                gbs=size / seconds * 1e-9,
                bound="",
                roof="",
                roof_share=None,
                shape=(),
                host=True,
            )
        )
    return Profile(rows, sum(row.seconds for row in rows), 1)


def profile(
    executable: Executable,
    arrays: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    runs: int,
    *,
    watch: bool = False,
) -> Profile:
    """Time operators separately and whole runs, `runs` times in turn; with `watch`, record as many timelines."""
    seconds, whole = time_operations(executable, arrays, outputs, runs)
    each = np.median(seconds, axis=0)
    known = roofs(executable.target.threads)
    rows = [
        _row(operation, float(time), float(each.sum()), known)
        for operation, time in zip(executable.operations, each, strict=True)
    ]
    watched = watch_run(executable, arrays, outputs, runs) if watch else None
    return Profile(rows, float(np.median(whole)), executable.target.threads, watched)


def _least_work(operation: CompiledNode) -> Work:
    """Minimum work of the operator; for a convolution that of its algorithm, as in `autotune table`."""
    choice = choice_of(operation.node_plan)
    offer = operation.node_plan.offer
    problem = getattr(offer.detail, "problem", None) if offer is not None else None
    found = None if choice is None or problem is None else work_of(problem, str(choice.candidate))
    flops = getattr(offer.detail, "flops", 0) if offer is not None else 0
    return found or Work(flops or 0, operation.inputs, operation.weights, operation.outputs)


def _row(operation: CompiledNode, seconds: float, total: float, known: Roofs | None) -> ProfileRow:
    node = operation.node_plan.node
    flops = getattr(operation.node_plan.offer.detail, "flops", None) if operation.node_plan.offer is not None else None
    verdict = None if known is None else classify(_least_work(operation), known, seconds)
    return ProfileRow(
        name=node.origin or next(filter(None, node.outputs)),
        op=node.op,
        types=operation.types,
        algorithm=algorithm(operation.node_plan),
        layouts=forms(operation.node_plan),
        seconds=seconds,
        share=seconds / total if total else 0.0,
        gflops=None if flops is None else flops / seconds * 1e-9,
        gbs=(operation.inputs + operation.weights + operation.outputs) / seconds * 1e-9,
        bound="" if verdict is None else str(verdict),
        roof="" if verdict is None else verdict.roof,
        roof_share=None if verdict is None else verdict.share,
        shape=operation.shape,
        host=operation.host,
    )
