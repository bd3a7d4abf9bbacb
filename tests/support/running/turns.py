"""Threads that take turns at every access to shared memory, in an order that the test controls.

Python runs the source of the compiled code, with futex(2) simulated in memory.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from cpuconv.runtime import thread_pool, work_stealing

PATIENCE = 60.0
_LOW = 0xFFFFFFFF  # futex(2) compares half a word
_WORDS = ("word", "put", "load", "store", "swap_if", "pause", "call_5", "call_kernel", "fetch", "fetch_to_write")


class Stopped(BaseException):
    """Ends a thread that would run for ever."""


class Stage:
    """Memory, and threads of which one runs at a time, drawn at random before each access to a word.

    Parameters
    ----------
    on_kernel : Callable
        on_kernel(worker, before, part, parts) is what kernels do.
    switch : float
        The chance that another thread goes on.
    """

    def __init__(self, patch: Any, rng: random.Random, switch: float, on_kernel: Callable[..., None]) -> None:
        self.memory: dict[int, int] = defaultdict(int)
        self._rng, self._switch, self._on_kernel = rng, switch, on_kernel
        self._turns: dict[int, threading.Semaphore] = {}
        self._sleeping: dict[int, tuple[int, int]] = {}  # thread to address and the value seen there
        self._ended = threading.Semaphore(0)
        self._stopped = False
        self._failure: BaseException | None = None
        self._actors: list[threading.Thread] = []
        for module in (work_stealing, thread_pool):
            for name, value in vars(module).copy().items():
                if name in _WORDS:
                    patch.setattr(module, name, getattr(self, name))
                elif hasattr(value, "py_func"):
                    patch.setattr(module, name, value.py_func)
        patch.setattr(thread_pool, "set_default", lambda: 0)  # of a processor's control word, which is not simulated

    def start(self, body: Callable[..., object], *args: int) -> threading.Thread:
        """A thread that will run `body`."""

        def run() -> None:
            me = threading.get_ident()
            try:
                self._turns[me].acquire()
                body(*args)
            except Stopped:
                pass
            except BaseException as error:  # told by play()
                self._failure = error
            del self._turns[me]
            self._next()

        actor = threading.Thread(target=run, daemon=True)
        self._actors.append(actor)
        return actor

    def play(self, until: list[threading.Thread]) -> None:
        """Run all threads until those have ended; the others are then stopped. Fails if all that are left sleep."""
        ready = threading.Semaphore(0)
        for actor in self._actors:
            inner = actor._target

            def run(inner: Any = inner) -> None:
                self._turns[threading.get_ident()] = threading.Semaphore(0)
                ready.release()
                inner()

            actor._target = run
            actor.start()
        for _ in self._actors:
            assert ready.acquire(timeout=PATIENCE)
        self._awaited = {actor.ident for actor in until}
        self._next()
        assert self._ended.acquire(timeout=PATIENCE), "no thread went on"
        if self._failure is not None:
            raise self._failure

    def _next(self) -> None:
        if not self._stopped and (self._failure or not self._awaited & self._turns.keys()):
            self._stopped = True
            for thread, (place, value) in self._sleeping.items():
                if self.memory[place] & _LOW != value:
                    self._failure = AssertionError(f"thread {thread} sleeps on a word that has changed: nobody woke it")
            self._sleeping.clear()
        awake = [thread for thread in self._turns if thread not in self._sleeping]
        if awake:
            self._turns[self._rng.choice(sorted(awake))].release()
        elif self._turns:
            self._failure = AssertionError(f"all sleep: {self._sleeping}")
            self._ended.release()
        else:
            self._ended.release()

    def _step(self) -> None:
        """Let another thread go on, by chance."""
        me = threading.get_ident()
        if me in self._sleeping or self._stopped or self._rng.random() < self._switch:
            turn = self._turns[me]
            if not self._stopped:
                self._next()
                turn.acquire()
            if self._stopped:
                raise Stopped

    def word(self, address: int, index: int) -> int:
        return self.memory[address + 8 * index]

    def put(self, address: int, index: int, value: int) -> None:
        self.memory[address + 8 * index] = value

    def load(self, address: int) -> int:
        self._step()
        return self.memory[address]

    def store(self, address: int, value: int) -> None:
        self._step()
        self.memory[address] = value

    def swap_if(self, address: int, expected: int, value: int) -> bool:
        self._step()
        if self.memory[address] != expected:
            return False
        self.memory[address] = value
        return True

    def pause(self) -> None:
        self._step()

    def fetch(self, place: int) -> None:
        """Nothing that a thread could see."""

    fetch_to_write = fetch

    def call_5(self, function: int, number: int, place: int, operation: int, value: int, timeout: int) -> int:
        """futex(2)."""
        assert timeout == 0  # a thread sleeps until it is woken
        self._step()
        if operation == thread_pool._WAIT:
            if self.memory[place] & _LOW == value:
                self._sleeping[threading.get_ident()] = place, value
                self._step()
        else:
            for thread in [thread for thread, (at, _) in self._sleeping.items() if at == place]:
                del self._sleeping[thread]
        return 0

    def call_kernel(self, entry: int, worker: int, before: int, part: int, parts: int, block: int) -> None:
        self._on_kernel(entry, worker, before, part, parts)
        self._step()
        self._on_kernel(-entry, worker, before, part, parts)
