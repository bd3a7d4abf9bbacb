"""Why a problem runs as it does: every candidate, measured or modelled, or why it was left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tabulate import tabulate

from cpuconv.problem import ConvProblem
from cpuconv.recipe import workspace_bytes
from cpuconv.select import Limits, applicable, limited, ranking


@dataclass(frozen=True)
class Line:
    """One candidate (or one solver that cannot run): seconds, bytes; None where not known."""

    candidate: str
    chosen: bool = False
    measured: float | None = None
    spread: float | None = None
    estimate: float | None = None
    bound: float | None = None
    gflops: float | None = None
    error: float | None = None
    workspace: int | None = None
    left_out: str | None = None


@dataclass(frozen=True)
class Explanation:
    """Printable account of a choice; `to_dict()` for programs."""

    problem: str
    algorithm: str
    decided_by: str
    lines: list[Line] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: problem, algorithm, decided_by, lines."""
        return asdict(self)

    def __str__(self) -> str:
        def micro(seconds: float | None) -> str:
            return "" if seconds is None else f"{seconds * 1e6:.1f}"

        rows = [
            (
                "*" if line.chosen else "",
                line.candidate,
                micro(line.measured),
                micro(line.spread),
                micro(line.estimate),
                "" if line.gflops is None else f"{line.gflops:.1f}",
                "" if line.error is None else f"{line.error:.1e}",
                "" if line.workspace is None else line.workspace,
                line.left_out or "",
            )
            for line in self.lines
        ]
        headers = ("", "candidate", "µs", "±", "model µs", "GFLOP/s", "error", "workspace", "left out because")
        title = f"{self.problem}\n{self.algorithm}, decided by: {self.decided_by}\n"
        return title + tabulate(rows, headers, disable_numparse=True)


def explain(problem: ConvProblem, limits: Limits, algorithm: str, decided_by: str) -> Explanation:
    """Account of the choice `algorithm` for `problem`; measured figures come from the store."""
    from cpuconv import tuned

    rows = tuned.rows(problem)
    lines = []
    for ranked in ranking(problem):
        name = str(ranked.candidate)
        row = rows.pop(name, None)
        measured = tuned.measured(row)
        rejected = row.reason if row is not None and measured is None else None
        reason = limited(problem, ranked, limits) or rejected
        seconds = measured if measured is not None else ranked.cost.estimate
        lines.append(
            Line(
                candidate=name,
                chosen=name == algorithm,
                measured=measured,
                spread=row.spread if measured is not None else None,
                estimate=ranked.cost.estimate,
                bound=ranked.cost.bound,
                gflops=problem.flops / seconds / 1e9 if seconds else None,
                error=row.error if row is not None else None,
                workspace=workspace_bytes(problem, ranked.candidate),
                left_out=reason,
            )
        )
    lines.sort(key=lambda line: (not line.chosen, line.left_out is not None, line.measured or 1e9, line.estimate))
    lines += [Line(candidate=name, left_out=reason) for name, reason in applicable(problem) if reason is not None]
    return Explanation(problem.key, algorithm, decided_by, lines)
