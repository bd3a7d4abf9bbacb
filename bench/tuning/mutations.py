"""Fuzzing of wisdom files and stores: thousands of mutated files are read in a process that may crash or hang.

`python -m bench.tuning.mutations KIND COUNT SEED FOLDER` is that process: it prints dots as progress, and its tally.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from autotune.interpreter import python
from autotune.machine.device import fingerprint
from autotune.paths import VARIABLE
from autotune.store.store import Row, Store
from autotune.wisdom import exchange
from autotune.wisdom.document import Wisdom, render
from autotune.wisdom.tiers import PINNED
from autotune.workload import ADMITS, Problem
from bench.tuning.figures import Figure
from bench.tuning.fuzz import Done, Tally, fuzz_store, fuzz_wisdom
from bench.tuning.session import Session
from cpuconv.conv import session as memory
from cpuconv.conv.choice import model, tuned
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.workload import workload

KINDS = ("wisdom", "store")
PROBLEM = ConvProblem(1, 8, 12, 12, 8, 3, 3, pads=(1, 1, 1, 1))
CANDIDATES = 12  # stored candidates
DOTS = 100  # dots per process
HANGS = 1800.0  # seconds before the process is ended
LONG = 2.0  # seconds after which one reading counts as a hang

REPO = Path(__file__).resolve().parents[2]


def fuzz(session: Session) -> Iterator[Figure]:
    """Read mutated files and report the results."""
    count = session.options.mutations
    for kind in KINDS:
        folder = session.folder / f"mutated-{kind}"
        folder.mkdir()
        dot = functools.partial(session.bar.advance, session.bar.add_task(f"mutations of a {kind} file", total=DOTS))
        tally, trouble = _in_a_process(kind, count, session.options.seed, folder, dot)
        if trouble:
            session.bar.console.print(f"{kind}: {trouble}")
        for found in (tally.wrong + tally.executed)[:3]:
            session.bar.console.print(f"{kind}: {found}")
        yield Figure("fuzz", f"{kind}: mutations read to the end", tally.attempts, "", count, most=False)
        yield Figure("fuzz", f"{kind}: crashes", bool(trouble), "", 0)
        yield Figure("fuzz", f"{kind}: the longest, hangs excluded", tally.longest, "s", LONG)
        yield Figure("fuzz", f"{kind}: executions", len(tally.executed), "", 0)
        yield Figure("fuzz", f"{kind}: wrong rows or plans", len(tally.wrong), "", 0)
        yield Figure("fuzz", f"{kind}: files from which something was taken", tally.taken)


def _in_a_process(kind: str, count: int, seed: int, folder: Path, dot: Callable[[], object]) -> tuple[Tally, str]:
    """Run the fuzzing process; return its tally and, if it failed, the reason."""
    environ = {**os.environ, "PYTHONPATH": str(REPO), VARIABLE: str(folder / "cache"), PINNED: str(folder / "pinned")}
    command = python("-m", "bench.tuning.mutations", kind, str(count), str(seed), str(folder))
    said = ""
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(HANGS, process.kill)
        timer.start()
        for line in process.stdout or ():
            if line.strip() == ".":
                dot()
            else:
                said = line
        process.wait()
        timer.cancel()
    if process.returncode or not said:
        return Tally(), f"process ended with exit code {process.returncode}"
    return Tally(**json.loads(said)), ""


def main(kind: str, count: int, seed: int, folder: Path) -> Tally:
    """Mutate and read files; print dots as progress."""
    done = _dots(count)
    store = Store(folder / "whole.sqlite")
    fill(store)
    store.close()
    if kind == "store":
        return fuzz_store(store.path, count, seed, folder, done)
    content = render(exchange.from_store(store)).encode()
    return fuzz_wisdom(content, count, seed, _Planner(Path(os.environ[PINNED])).look, done)


def fill(store: Store) -> None:
    """Write rows of a convolution as the tuner does: timed ones of several solvers, a rejected one, a stale one."""
    device = fingerprint()
    store.register(device)
    store.note([Problem(PROBLEM.key, "a layer", 1, float(PROBLEM.flops), "a network")])
    names = [str(each.candidate) for each in model.tuning_order(model.ranking(PROBLEM))[:CANDIDATES]]
    rows = [
        Row(device.key, PROBLEM.key, name, workload.sources_of(name), "ok", median=seconds, spread=1e-6, score=seconds)
        for name, seconds in ((name, 1e-5 * (1 + at)) for at, name in enumerate(names))
    ]
    old = rows[0]._replace(candidate=names[-1], sources="old", score=1e-9)
    store.put([*rows, rows[-1]._replace(state="rejected", reason="wrong: 1 over 2"), old])
    store.finish(device.key, PROBLEM.key, effort="quick", sources=workload.sources)


class _Planner:
    """Plans the problem with pinned wisdom, and checks each selected algorithm once."""

    def __init__(self, pinned: Path) -> None:
        self.pinned = pinned
        self.limits = model.Limits()
        self.known = {each.candidate for each in model.ranking(PROBLEM)}
        self.checked: set[str] = set()

    def look(self, content: bytes, found: Wisdom) -> str | None:
        """Return what is wrong with the plan, or None."""
        self.pinned.write_bytes(content)
        memory.current.forget_choices()
        choice = tuned.lookup(PROBLEM, self.limits)
        if choice is None:
            return None
        name = str(choice.candidate)
        if choice.candidate not in self.known or choice.candidate.accuracy not in ADMITS[self.limits.accuracy]:
            return f"{name} is chosen"
        if name not in self.checked:
            self.checked.add(name)
            trial = workload.prepare(PROBLEM.key, name)
            if not trial.check() <= trial.limit:
                return f"{name} computes something else"
        return None


def _dots(count: int) -> Done:
    step, seen = max(1, count // DOTS), 0

    def done() -> None:
        nonlocal seen
        seen += 1
        if seen % step == 0:
            print(".", flush=True)

    return done


if __name__ == "__main__":
    kind, count, seed, folder = sys.argv[1:]
    print(json.dumps(asdict(main(kind, int(count), int(seed), Path(folder)))))
