"""Background tuning next to a running program: one low-priority process tunes the problems that programs missed.

The process runs this module in another interpreter. It ends with its parent, when its standard input closes. Of all
processes that share a store, only one works at a time; the others wait for their turn.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from autotune.machine.device import fingerprint
from autotune.store.store import Store
from autotune.tuning.effort import EFFORTS
from autotune.tuning.warmup import warmup
from autotune.tuning.worker import Workers
from autotune.workload import MISSED, Workload, discover
from baselib.interpreter import python_main
from baselib.signals import start_thread

NICENESS = 19
PERIOD = 2.0  # seconds between checks for missed problems


class Background:
    """The background process; `stop()` ends it, and so does leaving the context."""

    def __init__(self, spec: str, store: Path, effort: str) -> None:
        """Start the process.

        Parameters
        ----------
        spec : str
            "module:attribute" of the workload.
        effort : str
            A key of `EFFORTS`.

        Raises
        ------
        ValueError
            Unknown effort.
        """
        if effort not in EFFORTS:
            raise ValueError(f"Argument 'effort' must be one of {', '.join(EFFORTS)}, not {effort!r}.")
        self._process = subprocess.Popen(
            python_main(__name__, spec, str(store), effort),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process; its finished results are in the store."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def main(spec: str, store: str, effort: str) -> None:
    """Tune missed problems until the parent ends."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    start_thread(threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True))
    with contextlib.ExitStack() as turn:
        with contextlib.suppress(OSError, NotImplementedError):  # without file locks, several work at a time
            turn.enter_context(FileLock(f"{store}.background"))
        _, workload = discover(spec)
        while True:
            if not tune_missed(workload, Store(store), effort, spec):
                time.sleep(PERIOD)


def tune_missed(workload: Workload, store: Store, effort: str, spec: str | None) -> bool:
    """Tune the most frequently missed problem; return whether there was one."""
    device = fingerprint().key
    missed = store.missed(device)
    if not missed:
        return False
    key, _ = missed[0]
    with contextlib.suppress(Exception):  # go on with the next problem after any error
        problems = [replace(problem, network=MISSED) for problem in workload.load(key)]
        warmup(workload, problems, store, effort, workers=Workers(spec, 1) if spec else None)
    store.clear_missed(device, [key])
    return True


def _end_with_parent(parent: int) -> None:
    def watch_pipe() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    start_thread(threading.Thread(target=watch_pipe, daemon=True))
    while os.getppid() == parent:  # a forked child of the parent may hold the pipe open
        time.sleep(PERIOD)
    os._exit(0)
