"""Check of finished problems: those tuned from other sources with identical kernels need no new timing."""

from __future__ import annotations

from autotune.machine.device import fingerprint
from autotune.store.rows import Row, RowLimits
from autotune.store.store import Store
from autotune.tuning.candidates import choose
from autotune.tuning.effort import EFFORTS
from autotune.workload import Problem, Workload


def is_finished(workload: Workload, problem: Problem, store: Store, effort: str) -> bool:
    """Whether a problem was tuned with this effort or a larger one, and nothing relevant has changed since.

    If sources have changed, all timed rows of the last tuning must have unchanged kernels. All candidates that the
    effort would try must have been tried. Then the rows are stored again, with the current sources.
    """
    device, weights = fingerprint().key, problem.weights
    efforts = [*EFFORTS][[*EFFORTS].index(effort) :]
    tuned = [each for each in efforts if store.is_finished(device, problem.key, efforts=(each,), weights=weights)]
    if not tuned or store.is_finished(device, problem.key, efforts=efforts, sources=workload.sources, weights=weights):
        return bool(tuned)
    rows = _latest(store.rows(device, problem.key, weights=weights))
    limits = RowLimits.of(workload)
    if not all(limits.is_current(row) for row in rows.values() if row.is_timed):
        return False
    if any(each.name not in rows for each in choose(workload, problem.key, store, tuned[-1], weights)):
        return False
    store.put([row._replace(sources=workload.sources_of(name)) for name, row in rows.items()])
    for each in tuned:
        store.finish(
            device,
            problem.key,
            effort=each,
            sources=workload.sources,
            threads=problem.threads,
            weights=weights,
        )
    return True


def _latest(rows: list[Row]) -> dict[str, Row]:
    """Return the latest row of each candidate."""
    return {row.candidate: row for row in sorted(rows, key=lambda row: row.created)}
