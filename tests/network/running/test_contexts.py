"""Runs that fail or are interrupted, and many at once: what they took is counted while it is held, and given back."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType
from typing import Any

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError
from cpuconv.memory import arenas as arenas_module
from cpuconv.memory import workspaces
from cpuconv.network.running import context_pool, execution_context
from support.graphs import parse, programs_of
from support.running.callers import at_once

# A kernel, one that refuses indices, a node that its reference computes, another kernel.
TEXT = """g (float[N,64,64,32] x, int64[1] places) => (float[1,64,64,32] y) <int64 all = {100}> {
    a = Relu(x)
    b = Gather(a, places)
    c = Trilu<upper = 0>(b, all)
    y = Sqrt(c)
}"""
X = np.random.default_rng(0).random((2, 64, 64, 32), np.float32)
GOOD = {"x": X, "places": np.array([1])}
BAD = {"x": X, "places": np.array([7])}
Y = np.sqrt(X[1:])


def _compiled(**options: Any) -> cpuconv.Model:
    return cpuconv.compile(parse(TEXT), threads=1, strategy="heuristic", **options)


@pytest.fixture
def model() -> cpuconv.Model:
    """It has run, and holds the memory of one run."""
    made = _compiled()
    _is_well(made)
    return made


def _is_well(made: cpuconv.Model) -> None:
    np.testing.assert_array_equal(made.run(GOOD)["y"], Y)


def _program(made: cpuconv.Model) -> Any:
    return programs_of(made).find((X.shape, (1,)))


# --- runs that fail -------------------------------------------------------------------------------------------------


def test_500_bad_requests_leave_everything_as_it_was(model: cpuconv.Model) -> None:
    before, program, errors = model.nbytes, _program(model), []
    programs_of(model).resize(3 * before)
    for _ in range(500):
        with pytest.raises(SourceError, match="Gather") as caught:
            model.run(BAD)
        errors.append(caught.value)  # with its traceback, as what reports errors may do
    _is_well(model)
    assert model.nbytes == before and len(program.executable.contexts) == len(program.executable.arenas) == 1
    assert len(programs_of(model)) == 1 and _program(model) is program
    assert programs_of(model)._cache.get(program.key) is program


def test_bad_requests_from_many_threads(model: cpuconv.Model) -> None:
    contexts, arenas = _program(model).executable.contexts, _program(model).executable.arenas

    def ask(at: int) -> None:
        for turn in range(20):
            if (at + turn) % 3:
                _is_well(model)
            else:
                with pytest.raises(SourceError):
                    model.run(BAD)

    at_once(6, ask)
    assert 1 <= len(contexts) <= 6 and 1 <= len(arenas) <= 6
    assert model.nbytes == _program(model).nbytes + arenas.nbytes


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_whatever_ends_a_run_nothing_is_lost(
    model: cpuconv.Model, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, program = model.nbytes, _program(model)

    def fails(*arguments: Any, **options: Any) -> Any:
        raise kind()

    with monkeypatch.context() as patched:
        patched.setattr(execution_context, "run", fails)
        for _ in range(5):
            with pytest.raises(kind):
                model.run(GOOD)
    with monkeypatch.context() as patched:
        patched.setattr(arenas_module, "large", fails)
        program.executable.release()
        for _ in range(5):
            with pytest.raises(kind):
                model.run(GOOD)
    gc.collect()
    _is_well(model)
    assert model.nbytes == before and len(programs_of(model)) == 1 and _program(model) is program


def test_an_interrupt_at_any_line_of_a_run(model: cpuconv.Model) -> None:
    """As Ctrl-C does it: an exception between any two lines of ours."""
    before, program = model.nbytes, _program(model)
    files = (
        "model.py",
        "program_cache.py",
        "ports.py",
        "executable.py",
        "execution_context.py",
        "context_pool.py",
        "recording.py",
        "arenas.py",
    )
    lines = 0

    def interrupted_at(line: int) -> bool:
        left = line

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if event == "line":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return local

        def entered(frame: FrameType, event: str, argument: Any) -> Any:
            return local if frame.f_code.co_filename.endswith(files) and "cpuconv" in frame.f_code.co_filename else None

        sys.settrace(entered)
        try:
            model.run(GOOD)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    while interrupted_at(lines):
        lines += 1
        assert len(program.executable.contexts) <= 1 and len(program.executable.arenas) <= 1
        assert len(programs_of(model)) == 1 and _program(model) is program
    assert lines > 50
    _is_well(model)
    assert model.nbytes == before


# --- many at once ---------------------------------------------------------------------------------------------------


def _peak(made: cpuconv.Model, count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Run so many callers at once, and what the model took meanwhile."""
    inside = threading.Barrier(count)
    run = execution_context.run
    seen: list[int] = []

    def meeting(*arguments: Any, **options: Any) -> Any:
        inside.wait()
        seen.append(made.nbytes)
        inside.wait()
        return run(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(execution_context, "run", meeting)
        at_once(count, lambda at: _is_well(made))
    return seen


def test_what_a_peak_took_is_counted_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _compiled(idle_bytes=0)
    _is_well(made)
    one, program = made.nbytes, _program(made).executable
    each = program.contexts.nbytes + program.arenas.nbytes
    assert program.arenas.nbytes >= X.nbytes
    assert min(_peak(made, 8, monkeypatch)) == one + 7 * each
    assert made.nbytes == one == programs_of(made)._cache.nbytes + program.arenas.nbytes
    assert len(program.contexts) == len(program.arenas) == 1


@pytest.mark.parametrize("kept", [0, 2, 5])
def test_as_much_as_is_allowed_is_kept(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _compiled()
    _is_well(made)
    each = _program(made).executable.arenas.nbytes
    made = _compiled(idle_bytes=kept * each + each // 2)
    _peak(made, 8, monkeypatch)
    assert len(_program(made).executable.arenas) == 1 + kept


def test_callers_that_nobody_needs_go(model: cpuconv.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(model).executable
    _peak(model, 8, monkeypatch)
    assert len(program.contexts) == len(program.arenas) == 8
    for _ in range(2 * context_pool._WINDOW):  # the first window may have begun before the peak
        _is_well(model)
    assert len(program.contexts) == len(program.arenas) == 1 and model.nbytes == program.nbytes + program.arenas.nbytes


def test_callers_that_are_needed_stay(model: cpuconv.Model) -> None:
    contexts = _program(model).executable.contexts
    held = [contexts.take(_program(model).executable.context) for _ in range(3)]
    for one in held:
        contexts.give_back(one)
    for _ in range(2 * context_pool._WINDOW):
        taken = [contexts.take(_program(model).executable.context) for _ in range(3)]
        for one in taken:
            contexts.give_back(one)
    assert {*held} == {*contexts._free} and len(contexts) == 3


def test_the_program_that_ran_last_counts_however_large() -> None:
    made = _compiled()
    programs_of(made).resize(0)
    _is_well(made)
    program = _program(made)
    assert made.nbytes == program.nbytes + program.executable.arenas.nbytes > X.nbytes


@pytest.mark.parametrize(
    ("wanted", "error"), [(-1, ArgumentError), ("1 MB", ArgumentTypeError), (True, ArgumentTypeError)]
)
def test_what_idle_bytes_may_be(wanted: Any, error: type[Exception], tmp_path: Any) -> None:
    with pytest.raises(error, match="'idle_bytes'"):
        _compiled(idle_bytes=wanted)
    _compiled().save(tmp_path / "m.cpuconv")
    with pytest.raises(error, match="'idle_bytes'"):
        cpuconv.load(tmp_path / "m.cpuconv", idle_bytes=wanted)
    options = cpuconv.SessionOptions()
    options.idle_bytes = wanted
    for source in (parse(TEXT).SerializeToString(), tmp_path / "m.cpuconv"):
        with pytest.raises(error, match="'idle_bytes'"):
            cpuconv.InferenceSession(source, options)


def test_a_workspace_pool_is_bounded() -> None:
    pool = workspaces.Workspaces()
    taken = [pool.take(workspaces._MAX_UNUSED // 3) for _ in range(5)]
    for one in taken:
        pool.give_back(one)
    assert sum(one.memory.nbytes for one in pool._free) <= workspaces._MAX_UNUSED and len(pool._free) >= 2
