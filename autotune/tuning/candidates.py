"""Selection of the candidates worth timing: those that no stored time and no other candidate rules out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from autotune.machine.device import fingerprint
from autotune.store.rows import DECIDED, WARM, RowLimits
from autotune.store.store import Row, Store
from autotune.timing.compare import MARGIN
from autotune.tuning.effort import EFFORTS
from autotune.workload import ADMITS, Candidate, Searchable, Workload


def choose(workload: Workload, key: str, store: Store, effort: str, weights: str = WARM) -> list[Candidate]:
    """Return the candidates worth compiling: the most promising ones that no stored decided time rules out.

    Provisional times rule out nothing.
    """
    candidates, _ = workload.candidates(key, effort)
    decided = [row for row in timed_rows(workload, key, store, weights) if row.state == DECIDED]
    known = [Timed(row.accuracy, row.workspace, row.median) for row in decided]
    seeds = {name: place for place, name in enumerate(store.seeds(key, weights))}
    # The model's choice stays first, as it wins ties.
    ordered = candidates[:1] + sorted(candidates[1:], key=lambda candidate: seeds.get(candidate.name, len(seeds)))
    return promising([candidate for candidate in ordered if ruled_out(candidate, known) is None], effort)


def timed_rows(workload: Searchable, key: str, store: Store, weights: str = WARM) -> list[Row]:
    """Return the timed rows of candidates that are unchanged since, best first."""
    rows = store.rows(fingerprint().key, key, weights=weights)
    limits = RowLimits.of(workload)
    return [row for row in rows if row.is_timed and limits.is_current(row)]


class Timed(NamedTuple):
    """A timed candidate: its accuracy class, workspace in bytes, and time in seconds."""

    accuracy: str
    workspace: int
    seconds: float


def ruled_out(candidate: Candidate, known: Iterable[Timed]) -> Timed | None:
    """Return a timed candidate that makes this one useless, or None.

    It serves every caller that this candidate could serve, and its time is at most `MARGIN` above this one's lower
    bound.
    """
    for timed in known:
        serves = timed.accuracy in ADMITS[candidate.accuracy] and timed.workspace <= candidate.workspace
        if serves and timed.seconds <= (1 + MARGIN) * candidate.bound:
            return timed
    return None


def promising(candidates: list[Candidate], effort: str) -> list[Candidate]:
    """Return the first candidates within the effort's limit, including the first of each accuracy class."""
    firsts = {candidate.accuracy: candidate for candidate in reversed(candidates)}.values()
    others = [candidate for candidate in candidates if candidate not in firsts]
    chosen = {*firsts, *others[: max(0, EFFORTS[effort].candidates - len(firsts))]}
    return [candidate for candidate in candidates if candidate in chosen]
