"""Trial runs of candidates in worker processes: a crash or a hang rejects the candidate and does not end the tuner.

A worker runs this module in another interpreter. It reads tasks from its standard input, one JSON line each. For a task
it compiles the candidate, reports that, runs it once, checks its output, and answers with a line. The worker ends with
its parent, when its standard input closes.
"""

from __future__ import annotations

import collections
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from types import TracebackType
from typing import IO, Any

from autotune.machine.device import allowed_cores
from autotune.workload import Searchable, Verdict, Workload, check, discover
from baselib.data_classes import dataclass
from baselib.interpreter import python_main
from baselib.signals import start_thread, unblock_signals

Task = tuple[str, str]  # key of a problem, name of a candidate

COMPILE_SECONDS = 60.0  # time limit to compile a candidate, and again for its first run
START_SECONDS = 120.0  # time limit to import the workload
STAGES = ("compile", "run")  # stages of a task, with the same limit each
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
RECYCLE = 200  # tasks after which a worker is replaced: Numba never frees compiled code
POLL_SECONDS = 0.1


class WorkerError(RuntimeError):
    """No worker can be started; the message contains the last one's error."""


@dataclass(frozen=True)
class Workers:
    """Settings of worker processes for trial runs.

    Attributes
    ----------
    spec : str
        "module:attribute" of the workload.
    count : int
        Number of concurrent workers.
    limit : float
        Time limit in seconds to compile a candidate, and again for its first run and check.
    """

    spec: str
    count: int = field(default_factory=allowed_cores)
    limit: float = COMPILE_SECONDS


class Pool:
    """Workers that try out one candidate each at a time; use as a context manager."""

    def __init__(self, workers: Workers) -> None:
        """Make a pool; workers start on demand, or by `start`."""
        self.limit = workers.limit
        self._workers = [_Worker(workers.spec) for _ in range(max(1, workers.count))]

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()

    def start(self) -> None:
        """Start the workers now, so that no problem waits for them; raises `WorkerError`."""
        for worker in self._workers:
            worker.ready()

    def run(
        self, tasks: Sequence[Task], *, deadline: float | None = None, done: Callable[[Task], None] = lambda task: None
    ) -> dict[Task, Verdict]:
        """Compile and run each task once, in order; one worker takes those of a problem, to create its data once.

        Parameters
        ----------
        deadline : float or None
            Time by `time.monotonic()` after which the remaining tasks are skipped.
        done : callable
            Called in this thread when a task ends.

        Returns
        -------
        dict
            The verdict of each task that ended in time.

        Raises
        ------
        WorkerError
            The workers do not start.
        """
        todo = _Queue(dict.fromkeys(tasks))
        expected = len(todo)
        answers: queue.Queue[tuple[Task, Verdict] | Exception] = queue.Queue()
        stop = threading.Event()

        def serve(worker: _Worker) -> None:
            try:
                task: Task | None = None
                while not stop.is_set() and (task := todo.next(task)) is not None:
                    answers.put((task, worker.try_out(task, self.limit)))
            except Exception as error:  # re-raised in the waiting thread
                answers.put(error)

        serving = [(w, threading.Thread(target=serve, args=(w,), daemon=True)) for w in self._workers[:expected]]
        for _, thread in serving:
            start_thread(thread)
        ended: dict[Task, Verdict] = {}
        try:
            while len(ended) < expected and (deadline is None or time.monotonic() < deadline):
                try:
                    answer = answers.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    continue
                if isinstance(answer, Exception):
                    raise answer
                ended[answer[0]] = answer[1]
                done(answer[0])
        finally:
            stop.set()
            for worker, thread in serving:
                while thread.is_alive():
                    if len(ended) < expected:
                        worker.kill()
                    thread.join(POLL_SECONDS)
        return ended


class _Queue:
    """A task queue for several threads."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._lock = threading.Lock()
        self._fresh: dict[str, collections.deque[Task]] = {}  # tasks by problem, of problems that no thread has begun
        for task in tasks:
            self._fresh.setdefault(task[0], collections.deque()).append(task)
        self._begun: dict[str, collections.deque[Task]] = {}

    def __len__(self) -> int:
        return sum(map(len, [*self._fresh.values(), *self._begun.values()]))

    def next(self, last: Task | None) -> Task | None:
        """Return the next task after `last`, or None: preferably of the same problem, then of one that no thread has
        begun, then of another thread's."""
        with self._lock:
            own = last[0] if last is not None and self._begun.get(last[0]) else None
            if own is None and self._fresh:
                own = next(iter(self._fresh))
                self._begun[own] = self._fresh.pop(own)
            own = own or next((key for key, tasks in self._begun.items() if tasks), None)
            return None if own is None else self._begun[own].popleft()


class _Worker:
    """One process, started on demand and restarted after it died."""

    def __init__(self, spec: str) -> None:
        self._command = python_main(__name__, spec)
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes] | None = None
        self._tasks = 0

    def try_out(self, task: Task, limit: float) -> Verdict:
        """Try out a candidate; return a verdict to store."""
        self.ready()
        self._send(task)
        self._tasks += 1
        for stage in STAGES:
            answer, late = self._read(limit)
            if answer is None:
                how = f"time limit of {limit:g} s passed" if late else self._death()
                self.kill()
                return Verdict(f"{stage}: {how}")
            if answer != stage:
                break
        return Verdict(*answer)

    def ready(self) -> None:
        """Start the process unless it runs; replace it after `RECYCLE` tasks."""
        if self._process is None or self._tasks >= RECYCLE:
            self.kill()
            self._start()

    def kill(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, self._errors):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:  # unsent data for a dead process
                continue

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._tasks = 0
        # A session of its own: Ctrl-C at the terminal only reaches the parent.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env=dict.fromkeys(BLAS_THREADS, "1") | os.environ,  # one worker per core, and checks use BLAS
            start_new_session=True,
        )
        answer, late = self._read(START_SECONDS)
        if answer != "":
            reason = answer or (f"not ready after {START_SECONDS:g} s" if late else self._death())
            self.kill()
            raise WorkerError(f"A worker process cannot be started: {reason}")

    def _send(self, task: Task) -> None:
        try:
            if self._process is not None and self._process.stdin is not None:  # else another thread killed it
                self._process.stdin.write(json.dumps(task) + "\n")
                self._process.stdin.flush()
        except (OSError, ValueError):  # dead (the next read detects it), or closed by `kill`
            return

    def _read(self, limit: float) -> tuple[Any, bool]:
        """Return the next answer, None if the process died, and whether it was killed for exceeding the limit."""
        process = self._process
        if process is None or process.stdout is None:
            return None, False
        late = threading.Event()

        def expire() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, expire)
        timer.daemon = True
        start_thread(timer)
        try:
            line = process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        finally:
            timer.cancel()
        return (json.loads(line) if line.endswith("\n") else None), late.is_set()

    def _death(self) -> str:
        process, errors = self._process, self._errors
        if process is None or errors is None:
            return "stopped"
        code = process.wait()
        how = f"died by {_signal_name(-code)}" if code < 0 else f"process ended with exit code {code}"
        errors.seek(0)
        said = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{how} ({said[-1].strip()[:200]})" if said else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(spec: str) -> None:
    """Serve tasks until standard input ends."""
    unblock_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep compiler output out of the answers
    tasks: queue.Queue[Any] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            tasks.put(json.loads(line))
        os._exit(0)  # the parent is gone, so a compilation in progress is useless

    def answer(content: Any) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        _, workload = discover(spec)
    except Exception as error:
        answer(describe(error))
        return
    answer("")
    start_thread(threading.Thread(target=read, daemon=True))
    while True:
        key, name = tasks.get()
        verdict = compile_here(workload, key, name)
        if not verdict.reason:
            answer(STAGES[0])
            verdict = run_here(workload, key, name)
        answer(verdict)


def compile_here(workload: Searchable, key: str, name: str) -> Verdict:
    """Compile a candidate in this process."""
    try:
        workload.compile(key, name)
    except Exception as error:
        return Verdict(f"compile: {describe(error)}")
    return Verdict()


def run_here(workload: Workload, key: str, name: str) -> Verdict:
    """Run and check a compiled candidate in this process."""
    try:
        return check(workload.prepare(key, name))
    except Exception as error:
        return Verdict(f"run: {describe(error)}")


def describe(error: BaseException) -> str:
    """Format an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400] if text else type(error).__name__
