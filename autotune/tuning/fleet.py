"""Tuning of one list of problems on many machines: split into shards, or scheduled on a dask cluster."""

from __future__ import annotations

import collections
import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.machine.device import fingerprint
from autotune.store.store import Store
from autotune.tuning.warmup import warmup
from autotune.tuning.worker import Workers, describe
from autotune.wisdom import exchange
from autotune.wisdom.document import Wisdom, parse, render
from autotune.workload import Problem, Workload, discover
from baselib.data_classes import dataclass

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_SECONDS = 30.0  # timeout in seconds for connecting to the scheduler
POLL_SECONDS = 1.0  # seconds between checks whether workers are alive
TRIES = 2  # max. workers that may die on a task

Task = tuple[Problem, ...]  # problems tuned together on one machine: they differ only in their threads


def tasks_of(workload: Workload, problems: Iterable[Problem]) -> dict[Task, float]:
    """Group problems without duplicates into tasks, and return their costs, the costliest first.

    Problems that differ only in their threads share a task. The cost is count × flops, the same on every machine.
    """
    families: dict[tuple[str, str], dict[str, Problem]] = {}
    costs: dict[tuple[str, str], float] = {}
    for problem in problems:
        family = workload.with_threads(problem.key, 1), problem.weights
        families.setdefault(family, {}).setdefault(problem.task, problem)
        costs[family] = costs.get(family, 0.0) + problem.count * problem.flops
    ranked = sorted(families, key=lambda family: (-costs[family], family))
    return {tuple(families[family].values()): costs[family] for family in ranked}


def shard(workload: Workload, problems: Sequence[Problem], index: int, count: int) -> list[Problem]:
    """Return part `index` (from 1) of `count`: disjoint parts of similar cost, for one machine each."""
    loads = [0.0] * count
    part: dict[str, int] = {}
    for task, weight in tasks_of(workload, problems).items():
        at = loads.index(min(loads))
        loads[at] += weight
        part.update((problem.task, at + 1) for problem in task)
    return [problem for problem in problems if part[problem.task] == index]


@dataclass(frozen=True)
class Settings:
    """Settings common to all tasks: the spec by which workers find the workload, and arguments of `warmup`."""

    spec: str
    effort: str
    layouts: str = ""
    shape_limit: float | None = None


@dataclass
class ClusterResults:
    """Results of a cluster run.

    Attributes
    ----------
    wisdom : Wisdom
        Wisdom of all devices.
    tuned : dict
        Tasks of tuned problems, by device.
    failed : dict
        Reasons of failures, by device and problem.
    """

    wisdom: Wisdom = field(default_factory=Wisdom)
    tuned: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def tune_on_cluster(
    address: str,
    workload: Workload,
    problems: Sequence[Problem],
    settings: Settings,
    report: Callable[[str], None] = lambda line: None,
) -> ClusterResults:
    """Tune every problem once per kind of device in a dask cluster; its workers have this package installed.

    A worker gets one task at a time. If a worker dies, its task goes to another one of the same device.

    Parameters
    ----------
    address : str
        Address of the scheduler.
    report : callable
        Called with one line of text per task.

    Raises
    ------
    OSError
        The scheduler cannot be reached, or has no workers.
    """
    from distributed import Client

    with Client(address, timeout=CONNECT_SECONDS) as client:
        devices = client.run(_device_key)
        if not devices:
            raise OSError(f"{address} has no workers")
        return _Harvester(client, devices, tasks_of(workload, problems), settings, report).run()


def _device_key() -> str:
    return fingerprint().key


def tune_here(task: Task, settings: Settings) -> str:
    """Tune a task in this process, into a temporary store; return the wisdom as JSON."""
    _, workload = discover(settings.spec)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store.sqlite") as store:
        warmup(
            workload,
            task,
            store,
            settings.effort,
            workers=Workers(settings.spec),
            layouts=settings.layouts,
            shape_limit=settings.shape_limit,
        )
        return render(exchange.from_store(store))


class _Harvester:
    """Assigns tasks to workers, one at a time each, and collects the results."""

    def __init__(
        self,
        client: Client,
        devices: dict[str, str],
        tasks: Iterable[Task],
        settings: Settings,
        report: Callable[[str], None],
    ) -> None:
        self._client, self._devices, self._settings, self._report = client, devices, settings, report
        self._waiting = {device: collections.deque(tasks) for device in devices.values()}
        self._tries: collections.Counter[tuple[str, Task]] = collections.Counter()
        self._running: dict[Future, tuple[str, Task]] = {}
        self._parts: list[Wisdom] = []
        self._results = ClusterResults(tuned={device: [] for device in devices.values()})

    def run(self) -> ClusterResults:
        from distributed import wait

        living = set(self._devices)
        while True:
            busy = {worker for worker, _ in self._running.values()}
            for worker in living - busy:
                self._start(worker)
            if not self._running:
                break
            with contextlib.suppress(TimeoutError):
                for future in wait([*self._running], timeout=POLL_SECONDS, return_when="FIRST_COMPLETED").done:
                    self._end(future)
            living &= self._client.nthreads().keys()
            self._bury(living)
        for device, tasks in self._waiting.items():
            for task in tasks:
                self._fail(device, task, "no worker of this device is left")
        self._results.wisdom = exchange.merge(self._parts)
        return self._results

    def _start(self, worker: str) -> None:
        waiting = self._waiting[self._devices[worker]]
        if waiting:
            task = waiting.popleft()
            future = self._client.submit(
                tune_here, task, self._settings, workers=[worker], allow_other_workers=False, pure=False
            )
            self._running[future] = worker, task

    def _end(self, future: Future) -> None:
        worker, task = self._running.pop(future)
        device = self._devices[worker]
        try:
            self._parts.append(parse(future.result().encode()))
        except Exception as error:  # go on with the other tasks after any error
            self._fail(device, task, describe(error))
        else:
            self._results.tuned[device] += [problem.task for problem in task]
            self._report(f"{task[0].label}: tuned on {device} by {worker}")

    def _bury(self, living: Collection[str]) -> None:
        """Reassign the tasks of dead workers."""
        for future, (worker, task) in list(self._running.items()):
            if worker not in living:
                del self._running[future]
                future.cancel()
                device = self._devices[worker]
                self._tries[device, task] += 1
                if self._tries[device, task] < TRIES:
                    self._waiting[device].appendleft(task)
                else:
                    self._fail(device, task, "its workers died")

    def _fail(self, device: str, task: Task, reason: str) -> None:
        for problem in task:
            self._results.failed[f"{device} {problem.task}"] = reason
        self._report(f"{task[0].label}: failed on {device}: {reason}")
