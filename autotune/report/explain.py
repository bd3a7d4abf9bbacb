"""Explanation of a problem's algorithm: all candidates with their figures, or the reason why they were left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from autotune.machine.roofline import Roofs, Verdict, Work, busy_note, classify, roofs_for
from autotune.store.rows import COLD, PROVISIONAL, RowLimits
from autotune.store.store import Store
from autotune.wisdom.tiers import OLDER_KERNELS, Found, Tiers
from autotune.workload import ADMITS, WEIGHTS, Candidate, Rejected, Workload
from baselib.data_classes import dataclass
from baselib.screen import Column, Report, Table
from baselib.text import joined, number, size

HEADERS = (
    Column(""),
    Column("candidate", least=28),
    Column("weights", rank=4),
    Column("from", rank=8),
    Column("µs", True),
    Column("±", True, rank=9),
    Column("model µs", True, rank=2),
    Column("GFLOP/s", True, rank=7),
    Column("of roof", True, rank=3),
    Column("bound by", rank=6),
    Column("error", True, rank=10),
    Column("workspace", True, rank=5),
    Column("left out because", rank=1, least=24),
)
# Texts for remarks on the deciding row.
REMARKS = {
    PROVISIONAL: "provisional: timed once, by a warmup that did not finish; the next warmup continues",
    OLDER_KERNELS: "measured with older kernels: used if the cost model agrees, until the problem is tuned again",
}
NOT_TUNED = "not timed: the problem is not tuned yet (see 'autotune warmup')"
ROOFS_UNKNOWN = "roofs not measured (run 'autotune doctor --measure' or a warmup)"


@dataclass(frozen=True)
class CandidateRow:
    """A candidate, or an algorithm that does not apply; unknown values are None.

    A candidate that was timed with warm and with cold weights has one line for each.

    Attributes
    ----------
    state : {"timed", "untimed", "rejected", "inapplicable"}
        Rejected: its trial run failed.
    weights : {"warm", "cold"}
        Timing mode.
    tier : {"pinned", "store", "shipped"}
        The tier of its row.
    remark : {"provisional", "older kernels"}
        Timed once, in a warmup that did not end; or measured with older kernels.
    measured, spread, estimate, bound : float
        Times in seconds; the last two are the model's.
    samples : int
        Number of samples of `measured`.
    share : float
        Share of the limiting roof, which `bound_by` names.
    error : float
        Error relative to the largest output.
    workspace : int
        Size in bytes.
    """

    candidate: str
    state: str
    chosen: bool = False
    weights: str | None = None
    tier: str | None = None
    remark: str | None = None
    measured: float | None = None
    spread: float | None = None
    samples: int | None = None
    estimate: float | None = None
    bound: float | None = None
    gflops: float | None = None
    share: float | None = None
    bound_by: str | None = None
    error: float | None = None
    accuracy: str | None = None
    workspace: int | None = None
    left_out: str | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the cells as text, in the order of `HEADERS`."""
        return (
            "*" if self.chosen else "",
            self.candidate,
            self.weights or "",
            joined(self.tier, self.remark),
            number(self.measured, ".1f", 1e6),
            number(self.spread, ".1f", 1e6),
            number(self.estimate, ".1f", 1e6),
            number(self.gflops, ".1f"),
            number(self.share, ".0%"),
            self.bound_by or "",
            number(self.error, ".1e"),
            size(self.workspace),
            self.left_out or "",
        )


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """Printable explanation of a selection; `to_dict()` for programs.

    Attributes
    ----------
    decided_by : str
        What selected the algorithm: its name passed by the caller, a tier of wisdom, a row of older kernels, a
        neighbour, or the model.
    bound_by, remedy : str or None
        The limit of the selected algorithm's time, and advice; None if nothing was timed or the roofs were not
        measured.
    serial_fraction : float or None
        Share of the single-thread time that more threads do not shorten (Amdahl), fitted where several numbers of
        threads were compared.
    """

    problem: str
    algorithm: str
    decided_by: str
    lines: list[CandidateRow]
    bound_by: str | None = None
    remedy: str | None = None
    serial_fraction: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, including the lines."""
        return asdict(self)

    def blocks(self) -> Iterator[str | Table]:
        """Yield the printed parts."""
        head = [self.problem, f"{self.algorithm}, decided by: {self.decided_by}"]
        head += [REMARKS[line.remark] for line in self.lines if line.chosen and line.remark]
        if self.remedy:
            head.append(f"bound by: {self.bound_by}. {self.remedy}")
        elif any(line.chosen and line.measured for line in self.lines):
            head.append(ROOFS_UNKNOWN)
        if self.serial_fraction is not None:
            head.append(f"serial fraction: {self.serial_fraction:.0%} of one thread's time")
        if note := busy_note(line.share for line in self.lines if line.chosen):
            head.append(note)
        yield "\n".join(head)
        yield Table(HEADERS, [line.cells() for line in self.lines])


@dataclass(frozen=True)
class Facts:
    """Data on a problem and its candidates on a device.

    Attributes
    ----------
    problem : str
        Key of the problem.
    flops : float
        Floating-point operations of one execution.
    rows : sequence of Found
        Rows in look-up order.
    candidates, rejected : sequence
        Applicable candidates, and algorithms that do not apply.
    work : callable
        Returns the work of a candidate by its name; None if unknown.
    roofs : Roofs or None
        Roofs for the problem's threads.
    left_out : mapping
        Reason why a limit excludes a candidate, by its name.
    """

    problem: str
    flops: float
    rows: Sequence[Found]
    candidates: Sequence[Candidate]
    rejected: Sequence[Rejected]
    work: Callable[[str], Work | None]
    roofs: Roofs | None
    left_out: Mapping[str, str] = field(default_factory=dict)


def account(facts: Facts, algorithm: str, decided_by: str) -> Explanation:
    """Explain a selection."""
    stored: dict[str, list[Found]] = {}
    for found in facts.rows:
        stored.setdefault(found.row.candidate, []).append(found)
    decisive = next((found for found in stored.get(algorithm, ()) if found.row.is_timed), None)
    times = [found.row.median for found in facts.rows if found.row.is_timed]
    best = decisive.row.median if decisive else min(times, default=None)
    pairs: list[tuple[CandidateRow, Found | None]] = []
    for candidate in facts.candidates:
        for known in stored.pop(candidate.name, None) or (None,):
            pairs.append((_offered(candidate, known, facts.flops, best), known))
    pairs += [(_stored(found, facts.flops), found) for rest in stored.values() for found in rest]  # former candidates
    lines, chosen = [], None
    for line, known in pairs:
        verdict = _verdict(line, facts.work(line.candidate), facts.roofs)
        if verdict is not None:
            line = replace(line, share=verdict.share, bound_by=str(verdict))
        if line.candidate == algorithm and known is decisive:
            line, chosen = replace(line, chosen=True), verdict
        lines.append(replace(line, left_out=facts.left_out.get(line.candidate, line.left_out)))
    return Explanation(
        facts.problem,
        algorithm,
        decided_by,
        [
            *sorted(lines, key=_order),
            *(CandidateRow(way.name, "inapplicable", left_out=way.reason) for way in facts.rejected),
        ],
        bound_by=str(chosen) if chosen else None,
        remedy=chosen.remedy if chosen else None,
        serial_fraction=_known(decisive.row.threads_fraction) if decisive else None,
    )


def explain_stored(
    store: Store, device: str, workload: Workload, problem: str, flops: float, threads: int, effort: str
) -> Explanation:
    """Explain the selection for a caller without limits on a device, with the candidates of an effort."""
    tiers, limits = Tiers(workload.tables, store), RowLimits.of(workload)._replace(accuracies=ADMITS["standard"])
    best, older = tiers.lookup(device, problem, limits), tiers.older(device, problem, limits)
    algorithm, decided_by = (best.row.candidate, best.tier) if best else ("", "")
    if best is None or older:
        untuned = workload.untuned(problem, [found.row.candidate for found in older])
        if best is None or untuned[1] == OLDER_KERNELS:
            algorithm, decided_by = untuned
    facts = Facts(
        problem,
        flops,
        tiers.all_rows(device, problem, limits),
        *workload.candidates(problem, effort),
        work=lambda name: workload.work(problem, name),
        roofs=roofs_for(store.devices().get(device, {}), threads),
    )
    return account(facts, algorithm, decided_by)


def _order(line: CandidateRow) -> tuple[Any, ...]:
    seconds = line.measured if line.measured is not None else math.inf
    estimate = line.estimate if line.estimate is not None else math.inf
    weights = WEIGHTS.index(line.weights) if line.weights in WEIGHTS else len(WEIGHTS)
    return not line.chosen, line.left_out not in (None, NOT_TUNED), weights, seconds, estimate, line.candidate


def _stored(found: Found, flops: float) -> CandidateRow:
    row = found.row
    line = CandidateRow(
        row.candidate,
        "rejected",
        weights=row.weights,
        tier=found.tier,
        remark=found.remark,
        error=_known(row.error),
        accuracy=row.accuracy,
        workspace=row.workspace,
    )
    if not row.is_timed:
        return replace(line, left_out=row.reason)
    spread, gflops = _known(row.spread), flops / row.median * 1e-9
    return replace(line, state="timed", measured=row.median, spread=spread, samples=row.count, gflops=gflops)


def _offered(candidate: Candidate, found: Found | None, flops: float, best: float | None) -> CandidateRow:
    """Return the line of a candidate with its row; without one, with the reason why it was not timed."""
    if found is not None:
        line = _stored(found, flops)
    elif best is None:
        line = CandidateRow(candidate.name, "untimed", left_out=NOT_TUNED)
    elif candidate.bound > best:
        reason = f"not timed: at least {candidate.bound * 1e6:.1f} µs, the best takes {best * 1e6:.1f}"
        line = CandidateRow(candidate.name, "untimed", left_out=reason)
    else:
        line = CandidateRow(candidate.name, "untimed", left_out="not timed: the model ranks it lower")
    workspace, accuracy = candidate.workspace, candidate.accuracy
    return replace(line, estimate=candidate.estimate, bound=candidate.bound, workspace=workspace, accuracy=accuracy)


def _verdict(line: CandidateRow, work: Work | None, roofs: Roofs | None) -> Verdict | None:
    if line.measured is None or work is None or roofs is None:
        return None
    return classify(work, roofs, line.measured, cold=line.weights == COLD)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
