"""Quality of the stored winners, agreement of warmups, and their cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from autotune.store.store import Store
from autotune.workload import ADMITS, Problem
from bench.tuning import session as warmups
from bench.tuning.figures import Figure
from bench.tuning.session import ACCURACY, EXHAUSTIVE, Session

MAX_DIFFERENCE = 0.03  # relative difference of winners within which warmups agree
SECONDS = {"quick": 1.5, "normal": 6.0}  # targets: seconds per shape, by effort


def regret(session: Session) -> Iterator[Figure]:
    """Compare the stored winner with the winner of the exhaustive search."""
    best, spent = session.warmed(EXHAUSTIVE)
    yield Figure("regret", f"{EXHAUSTIVE}, compiling included, a shape", spent / max(1, len(session.problems)), "s")
    for effort in session.options.efforts:
        store, _ = session.warmed(effort)

        def rivals(problem: Problem, store: Store = store) -> list[str] | None:
            pair = session.winner(problem, store), session.winner(problem, best)
            return None if None in pair else [row.candidate for row in pair if row is not None]

        found = {p.label: times.compare(0, 1).centre for p, times in session.against(f"regret, {effort}", rivals)}
        yield Figure("regret", f"{effort}: geomean over {len(found)} shapes", _geomean(found.values()), "×", 1.02)
        yield Figure("regret", f"{effort}: worst, {_worst(found)}", max(found.values()), "×", 1.10)


def heuristic(session: Session) -> Iterator[Figure]:
    """Compare the stored winner with the cost model's selection."""
    for effort in session.options.efforts:
        store, _ = session.warmed(effort)

        def rivals(problem: Problem, store: Store = store, effort: str = effort) -> list[str] | None:
            row = session.winner(problem, store)
            candidates, _ = warmups.workload.candidates(problem.key, effort)
            model = next((each.name for each in candidates if each.accuracy in ADMITS[ACCURACY]), None)
            return None if row is None or model is None else [row.candidate, model]

        found = list(session.against(f"heuristic, {effort}", rivals))
        ratios = {problem.label: times.compare(0, 1).centre for problem, times in found}
        slower = sum(times.compare(0, 1).low > 1.0 for _, times in found)
        name = f"{effort}: tuned time over the model's, geomean"
        yield Figure("heuristic", name, _geomean(ratios.values()), "×", 1.0)
        yield Figure("heuristic", f"{effort}: worst, {_worst(ratios)}", max(ratios.values()), "×")
        yield Figure("heuristic", f"{effort}: shapes slower beyond noise", slower, "", math.ceil(len(found) / 40))


def repeat(session: Session) -> Iterator[Figure]:
    """Compare the winners of several warmups that start from empty stores."""
    for effort in session.options.efforts:
        stores = [session.warmed(effort, turn)[0] for turn in range(session.options.warmups)]

        def rivals(problem: Problem, stores: Sequence[Store] = stores) -> list[str] | None:
            rows = [session.winner(problem, store) for store in stores]
            return None if None in rows else [row.candidate for row in rows if row is not None]

        spreads = [times.spread() for _, times in session.against(f"repeat, {effort}", rivals)]
        alike = sum(spread <= MAX_DIFFERENCE for spread in spreads) / max(1, len(spreads))
        name = f"{effort}: shapes on which {len(stores)} warmups are within {MAX_DIFFERENCE:.0%}"
        yield Figure("repeat", name, 100 * alike, "%", 90.0, most=False)


def seconds(session: Session) -> Iterator[Figure]:
    """Measure the seconds per shape with compiled kernels, including the start of workers."""
    for effort in session.options.efforts:
        turns = [session.warmed(effort, turn)[1] for turn in range(session.options.warmups)]
        each = statistics.median(turns) / len(session.problems)
        yield Figure("seconds", f"{effort}, a shape", each, "s", SECONDS.get(effort))


def _geomean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _worst(ratios: dict[str, float]) -> str:
    return max(ratios, key=ratios.__getitem__)
