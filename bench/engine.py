"""An engine in its own process: it answers requests, and is stopped while another engine is timed."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from autotune.machine.roofline import Roofs
from bench import oracle, peers, roofs, typed
from bench.networks.problem import NetworkProblem
from bench.peers.base import Form, NetworkPeer, Peer, TypedPeer, version
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32

CAN_STOP = hasattr(signal, "SIGSTOP")
MIN_RUNS = 3
SETTLE = 0.2  # share of a sample's time for warm-up runs that do not count


class EngineError(RuntimeError):
    """An engine failed to answer a request, or its process ended."""


@dataclass(frozen=True)
class Prepared:
    """One form of an engine, prepared for a problem."""

    form: str
    error: float
    plain: bool = True
    algorithm: str = ""
    detail: str = ""


class Engine:
    """A running engine process; every method waits for its answer.

    Parameters
    ----------
    key : str
        A key of `bench.peers.PEERS`, or `module:Class`.
    threads : int
        Threads that the engine may use.
    options : Mapping[str, object] | None
        Keyword arguments of the peer's class.
    timeout : float
        Seconds to wait for an answer before the process is ended.
    """

    def __init__(
        self, key: str, threads: int, options: Mapping[str, object] | None = None, timeout: float = 600.0
    ) -> None:
        self.key, self.threads, self.options, self.timeout = key, threads, dict(options or {}), timeout
        self.start()
        atexit.register(self.close)  # before multiprocessing's exit handler, which would wait for a stopped process

    def start(self) -> None:
        """Start the process.

        Raises
        ------
        EngineError
            If the engine is missing, with the reason.
        """
        context = multiprocessing.get_context("spawn")  # inherits no libraries or threads of the parent
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, self.key, self.threads, self.options), name=f"bench-{self.key}", daemon=True
        )
        with _environment(self.threads):
            self._process.start()
        theirs.close()
        try:
            self.name, self.version = self._answer()
        except EngineError:
            self.close()
            raise
        self._pause()

    def prepare(self, problem: ConvProblem | NetworkProblem, w_bits: int = typed.W_BITS) -> list[Prepared]:
        """Prepare the engine for a problem and check the output of every form; `w_bits` as in `Settings`."""
        return self.ask("prepare", problem, w_bits)

    def time(self, form: str, seconds: float) -> list[float]:
        """Run one form for about `seconds`; return the time of each run in seconds."""
        return self.ask("time", form, seconds)

    def roofs(self) -> Roofs:
        """Measure the machine's roofs with the engine's threads, which takes a few seconds."""
        return self.ask("roofs")

    def ask(self, *request: object) -> Any:
        """Send a request and wait for its answer.

        Raises
        ------
        EngineError
            If the engine fails, its process ends, or the answer takes longer than `timeout`.
        """
        self._signal("SIGCONT")
        try:
            self._pipe.send(request)
        except OSError as error:
            raise EngineError("its process has ended") from error
        answer = self._answer()
        self._pause()
        return answer

    @property
    def pid(self) -> int:
        """ID of the engine's process."""
        pid = self._process.pid
        assert pid is not None  # it was started
        return pid

    def revive(self) -> None:
        """Start again if the process has ended."""
        if not self._process.is_alive():
            self.close()
            self.start()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(self.timeout):
                self._process.kill()
                raise EngineError(f"no answer within {self.timeout:g} s")
            failed, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            raise EngineError(f"its process ended with code {self._process.exitcode}") from error
        if failed:
            raise EngineError(answer)
        return answer

    def _pause(self) -> None:
        """Stop the process: idle threads may spin and slow down the engine that is timed."""
        self._signal("SIGSTOP")

    def _signal(self, name: str) -> None:
        if CAN_STOP and self._process.is_alive():
            os.kill(self.pid, getattr(signal, name))


def serve(pipe: Connection, key: str, threads: int, options: Mapping[str, object]) -> None:
    """Run the engine process: answer each request with (failed, answer) until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # some engines print messages there
    session: Session | None = None
    request: tuple = ("start",)
    with contextlib.suppress(EOFError, OSError):
        while True:
            try:
                if session is None:
                    session, answer = _open(peers.make(key, **options), threads)
                else:
                    answer = getattr(session, request[0])(*request[1:])
                pipe.send((False, answer))
            except Exception as error:  # any exception of an engine becomes the answer
                pipe.send((True, f"{type(error).__name__}: {error}" if session else str(error)))
            request = pipe.recv()


def _open(peer: Peer, threads: int) -> tuple[Session, tuple[str, str]]:
    if reason := peer.available():
        raise RuntimeError(reason)
    return Session(peer, threads), (peer.name, version(peer.package))


class Session:
    """The requests that an engine process answers, for one peer."""

    def __init__(self, peer: Peer, threads: int) -> None:
        self.peer, self.threads = peer, threads
        self.forms: dict[str, Form] = {}

    def prepare(self, problem: ConvProblem | NetworkProblem, w_bits: int = typed.W_BITS) -> list[Prepared]:
        """Prepare every form of a problem, drop those of the previous problem, and check the outputs."""
        self.forms.clear()
        if isinstance(problem, NetworkProblem):
            problem = self._own(problem)
            references = problem.outputs()
            with self._converted(problem) as path:
                forms = self._runner().network(path, problem.feed(), self.threads)
        else:
            forms, references = self._convolution(problem, w_bits)
        prepared = []
        for form in forms:
            form.run()
            self.forms[form.name] = form
            output = form.output()
            if isinstance(problem, ConvProblem) and problem.types != ALL_F32:
                error = typed.error(problem, np.asarray(output), references[0])
            elif getattr(problem, "unordered", False):
                error = oracle.rows_error(output, references)
            else:
                error = oracle.worst_error(output, references)
            prepared.append(Prepared(form.name, error, form.plain, form.algorithm, form.detail))
        return prepared

    def _convolution(self, problem: ConvProblem, w_bits: int) -> tuple[list[Form], list[np.ndarray]]:
        if problem.types == ALL_F32:
            x, w, bias = oracle.arrays(problem)
            return self.peer.prepare(problem, x, w, bias, self.threads), [oracle.convolve(problem, x, w, bias)]
        given = typed.data(problem, w_bits)
        if not isinstance(self.peer, TypedPeer):
            raise RuntimeError(f"{self.peer.name} is compared in float32 only")
        return self.peer.typed(problem, given, self.threads), [typed.answer(problem, given)]

    def _runner(self) -> NetworkPeer:
        if not isinstance(self.peer, NetworkPeer):
            raise RuntimeError(f"{self.peer.name} is compared on single convolutions only")
        return self.peer

    def _own(self, problem: NetworkProblem) -> NetworkProblem:
        """Return the problem in the engine's precision."""
        return problem.full if problem.full is not None and getattr(self.peer, "full", False) else problem

    @contextlib.contextmanager
    def _converted(self, problem: NetworkProblem) -> Iterator[Path]:
        """Yield the file that the engine loads; it is deleted afterwards."""
        with tempfile.TemporaryDirectory(prefix="bench-engine-") as folder:
            yield self._runner().converted(problem.path, Path(folder))

    def time(self, form: str, seconds: float) -> list[float]:
        """Run a form for about `seconds` and time each run."""
        own = self.forms[form].sample
        return own(seconds) if own else sample(self.forms[form].run, seconds)

    def pace(self, form: str, seconds: float, pause: float) -> int:
        """Run a form again and again for `seconds`, with a pause after each run; return the number of runs."""
        runs, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.forms[form].run()
            time.sleep(pause)
            runs += 1
        return runs

    def roofs(self) -> Roofs:
        """Measure the machine's roofs in this process."""
        return roofs.measure(self.threads)


def sample(run: Callable[[], object], seconds: float) -> list[float]:
    """Time single runs for about `seconds`, after warm-up runs; return each time in seconds."""
    clock = time.perf_counter
    start = clock()
    while clock() - start < SETTLE * seconds:
        run()
    times: list[float] = []
    end = clock() + seconds
    while len(times) < MIN_RUNS or clock() < end:
        before = clock()
        run()
        times.append(clock() - before)
    return times


def _environment(threads: int) -> contextlib.AbstractContextManager[object]:
    """Return a context with the environment variables with which a child process starts."""
    wanted = {"OMP_NUM_THREADS": str(threads)}
    if not CAN_STOP:  # idle engines cannot be stopped, so they must not spin
        wanted |= {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    return mock.patch.dict(os.environ, wanted)
