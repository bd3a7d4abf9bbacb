"""Choice of the number of threads per problem: a comparison of thread counts, and the serial fraction."""

from __future__ import annotations

import random
from collections.abc import Mapping

from autotune.store.store import Row, Store
from autotune.timing.rounds import Rounds, run_rounds
from autotune.timing.sample import calibrate
from autotune.tuning.candidates import timed_rows
from autotune.tuning.search import SUMMARY
from autotune.workload import ADMITS, Workload

SECONDS = 1.0  # time limit of a comparison
ACCURACY = "standard"  # accuracy class of the compared candidates: the callers' default


def serial_fraction(times: Mapping[int, float]) -> float:
    """Fit the serial fraction f of Amdahl's law, T(n) = T(1) (f + (1 - f) / n), by least squares; 0 to 1.

    Source of the law: Amdahl, "Validity of the Single Processor Approach …", AFIPS Conference 1967. `times` are seconds
    by number of threads, including one thread.
    """
    points = [(1 - 1 / n, seconds / times[1] - 1 / n) for n, seconds in times.items() if n > 1]
    fitted = sum(a * b for a, b in points) / sum(a * a for a, _ in points)
    return min(1.0, max(0.0, fitted))


def compare(
    workload: Workload, keys: Mapping[int, str], store: Store, weights: str, *, seconds: float = SECONDS
) -> None:
    """Time the best candidates of one problem for several numbers of threads together, and rescale their rows.

    They were tuned one after another, while the machine's speed may have changed. All rows are rescaled to the
    fastest one, so that the store shows which count is fastest. The best candidates' rows store the serial fraction.
    `keys` are the problem's keys by number of threads.
    """
    rows = {n: timed_rows(workload, key, store, weights) for n, key in keys.items()}
    admitted = {n: [row for row in found if row.accuracy in ADMITS[ACCURACY]] for n, found in rows.items()}
    best = {n: found[0] for n, found in admitted.items() if found}
    if len(best) < 2:
        return
    trials = {n: workload.prepare(keys[n], row.candidate, weights) for n, row in best.items()}
    entrants = {str(n): calibrate(trial.run, trial.move, SUMMARY[weights]) for n, trial in trials.items()}
    rounds, key = Rounds(), keys[max(best)]
    run_rounds(rounds, entrants, rng=random.Random(key), probe=workload.speed_probe(key), seconds=seconds)
    fastest = rounds.fastest([*entrants])
    level = best[int(fastest)].score
    times = {n: level * rounds.compare(str(n), fastest).centre for n in best}
    fraction = serial_fraction(times) if 1 in times else None

    def scaled(row: Row, n: int) -> Row:
        row = row.scaled(times[n] / best[n].score)
        if fraction is None or row.candidate != best[n].candidate:
            return row
        return row._replace(threads_fraction=fraction)

    store.put([scaled(row, n) for n in best for row in rows[n]])
