"""Where the time of a network goes: each operator timed alone, beside whole runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from autotune.machine.roofline import Roofs, Work, busy_note, classify
from autotune.screen import Column, Report, Table
from autotune.text import number
from cpuconv.conv.choice.tuned import roofs
from cpuconv.conv.least_work import work_of
from cpuconv.graph.ir import Node
from cpuconv.network.reports.explain import COPY, algorithm, choice_of, forms, reference_of
from cpuconv.network.reports.timing import Watched, time_works, watch_run
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
    """One operator.

    Attributes
    ----------
    name, op, types, algorithm, layouts : str
    seconds : float
        Median of its runs, alone.
    share : float
        Of all operators' seconds.
    gflops : float or None
        1e9 operations a second, of the direct sum; None where operations are not counted. An algorithm that multiplies
        less, such as Winograd's, may be above the peak.
    gbs : float
        1e9 bytes a second, of inputs, outputs and weights, once each.
    bound : str
        By the roofline: compute, bandwidth or overhead; "" where this device's roofs were not measured.
    roof : str
        The roof that it is nearest to; "" where none was measured.
    roof_share : float or None
        What it reaches of that: the least time under the roof over the time taken. Of a convolution the operations are
        those that its algorithm executes, at the peak of the type that it multiplies in, as in `autotune table`.
    shape : tuple of int
        Of the first output.
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
        """Its kind: "reorder", "reference", the limit that binds it, or "kernel" where that is not known."""
        return "reorder" if self.op == COPY else "reference" if self.host else self.bound.split(" ")[0] or "kernel"

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of `COLUMNS`."""
        return (
            self.name, self.op, self.types, self.algorithm, self.layouts, f"{self.seconds * 1e6:.1f}",
            f"{self.share:.1%}", number(self.gflops, ".1f"), f"{self.gbs:.1f}", number(self.roof_share, ".0%"),
            self.bound,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Profile(Report):
    """Operators in the order in which they run.

    Attributes
    ----------
    rows : list of ProfileRow
    seconds : float
        Median of whole runs; the sum of the rows is larger by the cost of starting each alone.
    threads : int
    watched : Watched or None
        Who did what when in a run whose kernels were timed, where that was asked for; `Span.work` is a place in `rows`.
    """

    rows: list[ProfileRow]
    seconds: float
    threads: int
    watched: Watched | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @property
    def note(self) -> str | None:
        """What shares of roofs tell that no run reaches; None where there are none."""
        return busy_note(row.roof_share for row in self.rows)

    def blocks(self) -> Iterator[str | Table]:
        """What it prints."""
        yield Table(COLUMNS, [row.cells() for row in self.rows])
        total = sum(row.seconds for row in self.rows)
        yield f"whole run {self.seconds * 1e3:.3f} ms, operators alone {total * 1e3:.3f} ms"
        if self.note:
            yield self.note


def combined(profiles: Sequence[Profile]) -> Profile:
    """Parts of a network that run one after another, as one; the first part's workers may have been watched."""
    rows = [row for each in profiles for row in each.rows]
    total = sum(row.seconds for row in rows)
    rows = [replace(row, share=row.seconds / total if total else 0.0) for row in rows]
    first = profiles[0]
    return Profile(rows, sum(each.seconds for each in profiles), first.threads, first.watched)


def of_references(figures: Sequence[tuple[Node, Sequence[tuple[float, int]]]]) -> Profile:
    """Nodes that references compute, each with its seconds and bytes in some runs; their shares are yet to be found."""
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
    """Time the operators of a network `runs` times, each alone, in turns with whole runs; as many more to `watch`."""
    seconds, whole = time_works(executable, arrays, outputs, runs)
    each = np.median(seconds, axis=0)
    known = roofs(executable.target.threads)
    rows = [
        _row(work, float(time), float(each.sum()), known) for work, time in zip(executable.works, each, strict=True)
    ]
    watched = watch_run(executable, arrays, outputs, runs) if watch else None
    return Profile(rows, float(np.median(whole)), executable.target.threads, watched)


def _least_work(work: CompiledNode) -> Work:
    """What no run of the operator avoids; of a convolution the work of its algorithm, as `autotune table` has it."""
    choice = choice_of(work.node_plan)
    problem = getattr(work.node_plan.offer.detail, "problem", None) if work.node_plan.offer is not None else None
    found = None if choice is None or problem is None else work_of(problem, str(choice.candidate))
    flops = getattr(work.node_plan.offer.detail, "flops", 0) if work.node_plan.offer is not None else 0
    return found or Work(flops or 0, work.inputs, work.weights, work.outputs)


def _row(work: CompiledNode, seconds: float, total: float, known: Roofs | None) -> ProfileRow:
    node = work.node_plan.node
    flops = getattr(work.node_plan.offer.detail, "flops", None) if work.node_plan.offer is not None else None
    verdict = None if known is None else classify(_least_work(work), known, seconds)
    return ProfileRow(
        name=node.origin or next(filter(None, node.outputs)),
        op=node.op,
        types=work.types,
        algorithm=algorithm(work.node_plan),
        layouts=forms(work.node_plan),
        seconds=seconds,
        share=seconds / total if total else 0.0,
        gflops=None if flops is None else flops / seconds * 1e-9,
        gbs=(work.inputs + work.weights + work.outputs) / seconds * 1e-9,
        bound="" if verdict is None else str(verdict),
        roof="" if verdict is None else verdict.roof,
        roof_share=None if verdict is None else verdict.share,
        shape=work.shape,
        host=work.host,
    )
