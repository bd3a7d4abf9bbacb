"""Cost of look-ups: in a warm process, and of the first one in a large store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from unittest import mock

from autotune.machine.device import fingerprint
from autotune.store.rows import RowLimits
from autotune.store.store import Row, Store
from baselib.paths import VARIABLE
from bench.tuning.figures import Figure
from bench.tuning.session import Session
from cpuconv.conv import session as memory
from cpuconv.conv.choice import model, select, tuned
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.workload import workload

ROWS_A_PROBLEM = 8  # rows per problem in the large store
TURNS = 2000  # samples of look-ups; the shortest counts, because a shared machine rarely has its full speed
OPENINGS = 30  # the same for openings of the store


def lookup(session: Session) -> Iterator[Figure]:
    """Time a look-up in a warm process."""
    device, limits = fingerprint().key, model.Limits()
    problem = ConvProblem.parse(session.problems[0].key)
    name = str(model.by_model(problem, limits))
    row = _row(device, 0)._replace(problem=problem.key, candidate=name, sources=workload.sources_of(name))
    cache = session.folder / "cache"
    memory.current.forget_choices()
    with mock.patch.dict(os.environ, {VARIABLE: str(cache)}), Store(cache / "autotune.sqlite") as store:
        store.put([row])
        assert select.choose(problem, "cached", limits).decided_by == "store"
        calls: dict[str, Callable[[], object]] = {
            "the layers' best row": lambda: tuned.best(problem, limits),
            "the choice of an algorithm": lambda: select.choose(problem, "cached", limits),
        }
        for what, call in calls.items():
            seconds = min(_seconds(call, session.options.calls) for _ in range(TURNS)) / session.options.calls
            yield Figure("lookup", what, seconds * 1e6, "µs", 2.0)
    memory.current.forget_choices()


def large(session: Session) -> Iterator[Figure]:
    """Time opening a store with many rows and the first look-up."""
    path, count = session.folder / "large.sqlite", session.options.rows
    task = session.bar.add_task("filling a large store", total=count)
    device = fingerprint().key
    with Store(path) as store:
        for start in range(0, count, 10_000):
            rows = [_row(device, number) for number in range(start, min(count, start + 10_000))]
            store.put(rows)
            session.bar.advance(task, len(rows))

    def first() -> object:
        with Store(path, read_only=True) as store:
            return store.best(device, _row(device, count // 2).problem, RowLimits(frozenset({"sources"})))

    assert first() is not None
    seconds = min(_seconds(first, 1) for _ in range(OPENINGS))
    yield Figure("open", f"a store of {count} rows, and the first look-up", seconds * 1e3, "ms", 50.0)


def _seconds(call: Callable[[], object], times: int) -> float:
    repeats = range(times)
    start = time.perf_counter()
    for _ in repeats:
        call()
    return time.perf_counter() - start


def _row(device: str, number: int) -> Row:
    problem, candidate = divmod(number, ROWS_A_PROBLEM)
    key = f"g1mb1ic{problem + 1}ih56iw56oc64oh56ow56kh3kw3sh1sw1ph1pw1dh0dw0 in=NCHW out=NCHW act=none res=0 threads=1"
    seconds = 1e-3 * (1 + candidate)
    return Row(
        device, key, f"candidate{candidate}", "sources", "ok", median=seconds, spread=1e-6, count=9, score=seconds
    )
