"""Problems of the fake workload, and what a store holds of them."""

from __future__ import annotations

from autotune.machine.device import fingerprint
from autotune.store.store import Row, Store
from autotune.workload import Problem, Reading
from bench.tuning.fake import workload


def problems(*sources: str, count: int = 1) -> list[Problem]:
    return [problem for source in sources for problem in workload.load(source, Reading(threads=count))]


def rows(store: Store, problem: Problem) -> dict[str, Row]:
    return {row.candidate: row for row in store.rows(fingerprint().key, problem.key, problem.weights)}
