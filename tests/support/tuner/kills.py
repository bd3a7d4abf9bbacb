"""Robustness of the store: several concurrent warmups are killed at random moments."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from autotune.machine.device import fingerprint
from autotune.store.rows import PROVISIONAL
from autotune.store.store import Store
from baselib.interpreter import python
from support.running import processes

PROBLEMS = 40  # problems per kill: enough that some are always left
NEVER_BEST = "slow"  # a candidate that is never among the best, which are prepared again
AT_ONCE = 2
LIFE = 3.0  # maximum time to a kill, in multiples of a warmup of one problem (mostly its start)


@dataclass
class KillResults:
    """Result of the kills: warmups and their problems.

    Attributes
    ----------
    kills : int
        Warmups that were ended by SIGKILL.
    finished : set[str]
        Problems in the store.
    raced : set[str]
        Problems that were provisional when a warmup was killed.
    lost : set[str]
        Problems that were finished or provisional and are no longer in the store.
    twice : set[str]
        Problems tuned again after they were finished, or by both of two warmups that were not killed.
    open : set[str]
        Problems still provisional at the end.
    troubles : list[str]
        Other errors.
    """

    kills: int = 0
    finished: set[str] = field(default_factory=set)
    raced: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)


def kill_warmups(folder: Path, kills: int, seed: int) -> KillResults:
    """Kill pairs of warmups of a fake workload on one store at random times, then let one pair end by itself."""
    rng, results, path = random.Random(seed), KillResults(), folder / "store.sqlite"
    source = folder / "net.txt"
    source.write_text("".join(f"good:{n}\n" for n in range(1, PROBLEMS * kills + 1)))
    log = folder / "log"
    environ = {
        **os.environ,
        "PYTHONPATH": processes.PATH,
        "FAKE_CLOCK": "1",
        "FAKE_LOG": str(log),
    }
    command = python("-m", "autotune", "warmup", "--threads", "1", "--workload", "support.tuner.fake:workload")
    begun = time.monotonic()
    subprocess.run([*command, "good:1", "--store", str(folder / "first.sqlite")], env=environ, capture_output=True)
    longest = LIFE * (time.monotonic() - begun)
    command += [str(source), "--store", str(path)]
    while True:
        last = results.kills >= kills
        log.write_text("")
        running = [
            subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for _ in range(AT_ONCE)
        ]
        for process in running:
            if not last:
                time.sleep(rng.uniform(0.1, longest))
                process.send_signal(signal.SIGKILL)
                results.kills += 1
            _, said = process.communicate(timeout=240)
            if process.returncode not in (0, -signal.SIGKILL) or "StoreWarning" in said:
                results.troubles.append(said)
        _look(results, path, log, undisturbed=last)
        if last:
            return results


def _look(results: KillResults, path: Path, log: Path, undisturbed: bool) -> None:
    """Compare the store with its previous content, and with the problems tuned since."""
    with Store(path) as store:
        if store.health() != "ok":
            results.troubles.append(store.health())
        finished = {each.problem for each in store.finished(fingerprint().key)}
        rows = {key: store.rows(fingerprint().key, key) for key, _ in store.tuned(fingerprint().key)}
    timed = finished & rows.keys()
    results.open = {key for key, found in rows.items() if any(row.state == PROVISIONAL for row in found)}
    results.lost |= (results.finished - timed) | (results.raced - rows.keys())
    results.raced |= results.open
    prepared = Counter(line for line in log.read_text().splitlines() if line.startswith("prepare"))
    results.twice |= {
        key for key in timed if prepared[f"prepare {key} {NEVER_BEST}"] > _allowed(key, results, undisturbed)
    }
    results.finished |= timed
    corrupt = sorted(path.parent.glob("*.corrupt-*"))
    results.troubles += [f"{each.name} was set aside" for each in corrupt]


def _allowed(key: str, results: KillResults, undisturbed: bool) -> float:
    """Return how often a candidate may have been prepared since the last check, by a worker and by the tuner."""
    if key in results.finished:
        return 0
    return 2 if undisturbed else math.inf  # a killed warmup leaves the problem to another one
