"""Why a problem runs as it does: every candidate with its figures, or why it was left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tabulate import tabulate

from autotune.machine.roofline import Roofs, Verdict, Work, classify, roofs_for
from autotune.store.rows import COLD, PROVISIONAL
from autotune.store.store import Store
from autotune.text import joined, number, size
from autotune.wisdom.tiers import OLDER, Found, Tiers
from autotune.workload import ADMITS, REGIMES, Candidate, Rejected, Workload

HEADERS = (
    "", "candidate", "weights", "from", "µs", "±", "model µs", "GFLOP/s", "of roof", "bound by", "error", "workspace",
    "left out because",
)  # fmt: skip
# What a remark on the row that decides means.
REMARKS = {
    PROVISIONAL: "provisional: raced once, in a warmup that has not ended; the next one goes on",
    OLDER: "measured with older kernels: taken where the cost model agrees, until the problem is tuned again",
}
ROOFS_UNKNOWN = "roofs not measured ('autotune doctor --measure' does it, as does a warmup)"


@dataclass(frozen=True)
class Line:
    """One candidate, or one way that cannot run; None where not known.

    A candidate that was timed with warm and with cold weights has a line of each.

    state: "timed", "untimed", "rejected" (it failed when it was tried) or "inapplicable".
    regime: how it was timed, "warm" or "cold".  tier: of wisdom that knows it: "pinned", "store" or "shipped".
    remark: "provisional" if it was raced once, in a warmup that did not end; "older kernels" if it was measured with
    such.
    measured, spread, estimate, bound: seconds; the last two are the model's.  samples: behind `measured`.
    share: of the roof that binds, which `bound_by` names.  error: relative to the largest output.  workspace: bytes.
    """

    candidate: str
    state: str
    chosen: bool = False
    regime: str | None = None
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


@dataclass(frozen=True)
class Explanation:
    """Printable account of a choice; `to_dict()` for programs.

    decided_by: what chose the algorithm: its name given, a tier of wisdom, what was measured with older kernels, a
    neighbour, or the model.
    serial_fraction: of one thread's time, what more threads do not shorten (Amdahl), as fitted where several numbers
    of threads were compared.
    bound_by, remedy: what the chosen algorithm's time is bound by, and what helps; None if nothing was timed or the
    roofs were not measured.
    """

    problem: str
    algorithm: str
    decided_by: str
    lines: list[Line]
    bound_by: str | None = None
    remedy: str | None = None
    serial_fraction: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the lines too."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [
            (
                "*" if line.chosen else "",
                line.candidate,
                line.regime or "",
                joined(line.tier, line.remark),
                number(line.measured, ".1f", 1e6),
                number(line.spread, ".1f", 1e6),
                number(line.estimate, ".1f", 1e6),
                number(line.gflops, ".1f"),
                number(line.share, ".0%"),
                line.bound_by or "",
                number(line.error, ".1e"),
                size(line.workspace),
                line.left_out or "",
            )
            for line in self.lines
        ]
        alignment = (*["left"] * 4, *["right"] * 5, "left", "right", "right", "left")
        head = [self.problem, f"{self.algorithm}, decided by: {self.decided_by}"]
        head += [REMARKS[line.remark] for line in self.lines if line.chosen and line.remark]
        if self.remedy:
            head.append(f"bound by: {self.bound_by}. {self.remedy}")
        elif any(line.chosen and line.measured for line in self.lines):
            head.append(ROOFS_UNKNOWN)
        if self.serial_fraction is not None:
            head.append(f"serial fraction: {self.serial_fraction:.0%} of one thread's time")
        return "\n".join(head) + "\n\n" + tabulate(rows, HEADERS, colalign=alignment, disable_numparse=True)


def account(
    problem: str,
    flops: float,
    rows: Iterable[Found],
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejected],
    *,
    algorithm: str,
    decided_by: str,
    work: Callable[[str], Work | None],
    roofs: Roofs | None,
    limits: Mapping[str, str] | None = None,
) -> Explanation:
    """The account of a choice.

    Arguments:
        rows: what is known of the problem, in the order in which a look-up asks.  candidates, rejected: what can run
        it, and what cannot.
        work: of a candidate, by its name.  roofs: for the problem's threads.  limits: why a limit leaves a candidate
        out, by its name.
    """
    stored: dict[str, list[Found]] = {}
    for each in rows:
        stored.setdefault(each.row.candidate, []).append(each)
    decided = next((each for each in stored.get(algorithm, ()) if each.row.is_timed), None)
    times = [row.median for found in stored.values() for row, *_ in found if row.is_timed]
    best = decided.row.median if decided else min(times, default=None)
    left_out = limits or {}

    def told(line: Line, each: Found | None) -> tuple[Line, Verdict | None]:
        verdict = _verdict(line, work(line.candidate), roofs)
        if verdict is not None:
            line = replace(line, share=verdict.share, bound_by=str(verdict))
        chosen = line.candidate == algorithm and each is decided
        return replace(line, chosen=chosen, left_out=left_out.get(line.candidate, line.left_out)), verdict

    found = [
        (_offered(candidate, each, flops, best), each)
        for candidate in candidates
        for each in stored.pop(candidate.name, None) or [None]
    ]
    found += [(_stored(each, flops), each) for rest in stored.values() for each in rest]  # no longer offered
    judged = [told(*each) for each in found]
    verdict = next((verdict for line, verdict in judged if line.chosen), None)
    lines = sorted((line for line, _ in judged), key=_order)
    lines += [Line(other.name, "inapplicable", left_out=other.reason) for other in rejected]
    bound_by, remedy = (str(verdict), verdict.remedy) if verdict else (None, None)
    serial_fraction = _known(decided.row.threads_fraction) if decided else None
    return Explanation(problem, algorithm, decided_by, lines, bound_by, remedy, serial_fraction)


def explain_stored(
    store: Store, device: str, workload: Workload, problem: str, flops: float, threads: int, effort: str
) -> Explanation:
    """The account of the choice that a caller without limits gets on a device; of the candidates of an effort."""
    tiers, sources = Tiers(workload.tables, store), workload.sources
    candidates, rejected = workload.candidates(problem, effort)
    asked = {"sources": sources, "accuracies": ADMITS["standard"]}
    best, older = tiers.lookup(device, problem, **asked), tiers.older(device, problem, **asked)
    algorithm, decided_by = (best.row.candidate, best.tier) if best else ("", "")
    if best is None or older:
        told = workload.untuned(problem, [each.row.candidate for each in older])
        if best is None or told[1] == OLDER:
            algorithm, decided_by = told
    return account(
        problem,
        flops,
        tiers.all_rows(device, problem, sources),
        candidates,
        rejected,
        algorithm=algorithm,
        decided_by=decided_by,
        work=lambda name: workload.work(problem, name),
        roofs=roofs_for(store.devices().get(device, {}), threads),
    )


def _order(line: Line) -> tuple[Any, ...]:
    seconds = line.measured if line.measured is not None else math.inf
    estimate = line.estimate if line.estimate is not None else math.inf
    regime = REGIMES.index(line.regime) if line.regime in REGIMES else len(REGIMES)
    return not line.chosen, line.left_out is not None, regime, seconds, estimate, line.candidate


def _stored(found: Found, flops: float) -> Line:
    row = found.row
    line = Line(
        row.candidate,
        "rejected",
        regime=row.regime,
        tier=found.tier,
        remark=found.remark,
        error=_known(row.error),
        accuracy=row.accuracy,
        workspace=row.workspace,
    )
    if not row.is_timed:
        return replace(line, left_out=row.reason)
    figures = {"measured": row.median, "spread": _known(row.spread), "samples": row.count}
    return replace(line, state="timed", **figures, gflops=flops / row.median * 1e-9)


def _offered(candidate: Candidate, found: Found | None, flops: float, best: float | None) -> Line:
    """A candidate with its row; without one, why it was not timed if others were."""
    if found is not None:
        line = _stored(found, flops)
    elif best is None:
        line = Line(candidate.name, "untimed")
    elif candidate.bound > best:
        reason = f"not timed: at least {candidate.bound * 1e6:.1f} µs, the best takes {best * 1e6:.1f}"
        line = Line(candidate.name, "untimed", left_out=reason)
    else:
        line = Line(candidate.name, "untimed", left_out="not timed: the model ranks it lower")
    model = {"estimate": candidate.estimate, "bound": candidate.bound}
    return replace(line, **model, workspace=candidate.workspace, accuracy=candidate.accuracy)


def _verdict(line: Line, work: Work | None, roofs: Roofs | None) -> Verdict | None:
    if line.measured is None or work is None or roofs is None:
        return None
    return classify(work, roofs, line.measured, cold=line.regime == COLD)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
