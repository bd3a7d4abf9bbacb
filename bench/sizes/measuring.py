"""A process that measures one engine on one network: `python -m bench.sizes.measuring` reads a job and prints figures.

In the first pass every size is new; later passes run the same arrays again. Drawing the elements is not timed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np

from baselib.interpreter import python
from bench import first, oracle
from bench.memory import NOW, PEAK, resident
from bench.sizes.inputs import SizedNetwork

OTHER_SEED = 1000  # added to the seed, for the sizes that run during `wait`


@dataclass(frozen=True)
class Job:
    """Measurement of one process.

    Attributes
    ----------
    engine : str
        Key of `bench.first.NAMES`.
    threads : int
    network : SizedNetwork
    again : int
        Passes over the same inputs after the first one.
    wait : float
        Seconds from the start of the process to the first pass, spent on other sizes; 0: none.
    compared : int
        Number of inputs, evenly among all, whose outputs are stored for comparison.
    outputs : str
        File for these outputs, in NumPy's npz format.
    runs, largest_batch : int
        For `measure_memory`: number of runs of random sizes, and largest batch.
    """

    engine: str
    threads: int
    network: SizedNetwork
    again: int = 1
    wait: float = 0.0
    compared: int = 0
    outputs: str = ""
    runs: int = 0
    largest_batch: int = 1


def ask(job: Job, variables: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Run a job in a new process; return its figures, or `{"failed": reason}`."""
    asked = json.dumps(dataclasses.asdict(job))
    command = python("-m", "bench.sizes.measuring")
    environ = {**variables, "OMP_NUM_THREADS": str(job.threads)}
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, env=environ, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result after {timeout:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def measure_times(job: Job) -> dict[str, Any]:
    """Time every input in every pass.

    Returns
    -------
    dict
        "imported", "made": seconds until the engine was imported, and until the network was loaded.
        "shapes"; "wall", "processor": seconds of each input, by pass; "compiled": kernels that this process compiled
        for each input of the first pass; "changed": inputs whose outputs had other bits in a later pass.
    """
    figures, run, begun = _loaded(job)
    network = job.network
    shapes = network.shapes()
    others = replace(network, seed=network.seed + OTHER_SEED).shapes() if job.wait else []
    for number, shape in enumerate(cycle([each for each in others if each not in shapes])):
        if time.perf_counter() - begun > job.wait:
            break
        run({network.port: network.array(shape, number)})
    kept = range(0, len(shapes), max(1, len(shapes) // job.compared)) if job.compared else range(0)
    wall: list[list[float]] = []
    processor: list[list[float]] = []
    compiled: list[int] = []
    digests: list[bytes] = []
    arrays: dict[str, np.ndarray] = {}
    changed = set()
    for turn in range(1 + job.again):
        wall.append([])
        processor.append([])
        for number, shape in enumerate(shapes):
            feed, before = {network.port: network.array(shape, number)}, _compiled()
            times = time.perf_counter(), time.process_time()
            outputs = run(feed)
            processor[-1].append(time.process_time() - times[1])
            wall[-1].append(time.perf_counter() - times[0])
            digest = hashlib.blake2b(b"".join(each.tobytes() for each in outputs)).digest()
            if turn:
                changed |= {number} if digest != digests[number] else set()
                continue
            digests.append(digest)
            compiled.append(_compiled() - before)
            arrays |= {f"{number} {at}": each.copy() for at, each in enumerate(outputs) if number in kept}
    if job.outputs:
        np.savez(job.outputs, **arrays)  # type: ignore[arg-type]
    return {
        **figures,
        "shapes": shapes,
        "wall": wall,
        "processor": processor,
        "compiled": compiled,
        "changed": sorted(changed),
    }


def measure_memory(job: Job) -> dict[str, Any]:
    """Measure resident bytes after import, loading, the first run, 10%, 40% and all of the runs, and the peak."""
    figures, run, _ = _loaded(job)
    memory = {"imported": figures["imported_bytes"], "made": resident(NOW)}
    network = job.network
    for number, shape in enumerate(network.batches(job.runs, job.largest_batch)):
        run({network.port: network.array(shape, number)})
        memory.setdefault("first", resident(NOW))
        for percent in (10, 40):
            if 100 * number <= percent * job.runs:
                memory[f"{percent}%"] = resident(NOW)
    return {**figures, "memory": {**memory, "all": resident(NOW), "peak": resident(PEAK)}}


def _loaded(job: Job) -> tuple[dict[str, Any], Callable[[dict[str, np.ndarray]], list[np.ndarray]], float]:
    """Load the network; return figures of loading, the network, and the start time."""
    begun = time.perf_counter()
    importlib.import_module(job.engine)
    figures: dict[str, Any] = {"imported": time.perf_counter() - begun, "imported_bytes": resident(NOW)}
    run, _ = getattr(first, job.engine)("model", job.threads, job.network.path)
    figures["made"] = time.perf_counter() - begun
    return figures, run, begun


def _compiled() -> int:
    """Return the number of kernels that this process has compiled."""
    cache = sys.modules.get("cpuconv.runtime.code.cache")
    return 0 if cache is None else cache.Statistics.compiled


def largest_errors(files: Mapping[str, str], reference: str) -> dict[str, float]:
    """Return the largest difference of each engine's outputs from the reference's, over the output's largest element.

    `files` are the npz files of engines by key.
    """
    outputs = {}
    for key, file in files.items():
        with np.load(file) as arrays:
            outputs[key] = dict(arrays)
    expected = outputs.pop(reference)
    return {
        key: max((oracle.error(array, expected[name]) for name, array in found.items()), default=0.0)
        for key, found in outputs.items()
    }


def main() -> int:
    """Read a job from the standard input, and print its figures as JSON."""
    stated = json.load(sys.stdin)
    shape = {name: tuple(stated["network"][name]) for name in ("base", "axes", "low", "high")}
    job = Job(**{**stated, "network": SizedNetwork(**{**stated["network"], **shape})})
    print(json.dumps((measure_memory if job.runs else measure_times)(job)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
