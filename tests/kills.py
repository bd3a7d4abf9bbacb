"""Warmups killed at random moments, several at once: what a store must survive."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from autotune.device import fingerprint
from autotune.store import Store

HERE = Path(__file__).parent
PROBLEMS = 20  # a kill: enough that there is always something left to do
AT_ONCE = 2
LONGEST = 1.6  # seconds that a warmup lives, most of them its start


@dataclass
class Toll:
    """kills: warmups that were ended by SIGKILL.  finished: problems in the store.  lost: those that once were there.
    twice: those tuned again after they were finished.  troubles: what else was wrong."""

    kills: int = 0
    finished: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)


def kill_warmups(folder: Path, kills: int, seed: int) -> Toll:
    """Start pairs of warmups on one store and kill each after a random time, then let one pair end by itself.

    Arguments:
        folder: for the store and logs.  kills: warmups to kill.  seed: of the times.
    """
    rng, toll, path = random.Random(seed), Toll(), folder / "store.sqlite"
    source = folder / "net.txt"
    source.write_text("".join(f"good:{n}\n" for n in range(1, PROBLEMS * kills + 1)))
    log = folder / "log"
    environ = {
        **os.environ,
        "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}",
        "FAKE_CLOCK": "1",
        "FAKE_LOG": str(log),
        "PYTHONWARNINGS": "error::autotune.database.StoreWarning",
    }
    command = [sys.executable, "-m", "autotune", "warmup", str(source), "--threads", "1", "--store", str(path)]
    command += ["--workload", "fake_workload:workload"]
    while True:
        last = toll.kills >= kills
        log.write_text("")
        running = [
            subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for _ in range(AT_ONCE)
        ]
        for process in running:
            if not last:
                time.sleep(rng.uniform(0.1, LONGEST))
                process.send_signal(signal.SIGKILL)
                toll.kills += 1
            _, said = process.communicate(timeout=240)
            if process.returncode not in (0, -signal.SIGKILL):
                toll.troubles.append(said)
        _look(toll, path, log)
        if last:
            return toll


def _look(toll: Toll, path: Path, log: Path) -> None:
    """Compare the store with what it held before, and with what was tuned since."""
    with Store(path) as store:
        if store.health() != "ok":
            toll.troubles.append(store.health())
        finished = {each.problem for each in store.finished(fingerprint().key)}
        timed = {key for key in finished if store.rows(fingerprint().key, key)}
    toll.lost |= toll.finished - timed
    # The tuner prepares a candidate in its own process after a worker has; a problem has "model" prepared twice.
    prepared = [line.rpartition(" ")[0] for line in log.read_text().splitlines() if line.startswith("prepare")]
    toll.twice |= {key for key in toll.finished if f"prepare {key}" in prepared}
    toll.finished |= timed
    corrupt = sorted(path.parent.glob("*.corrupt-*"))
    toll.troubles += [f"{each.name} was set aside" for each in corrupt]
