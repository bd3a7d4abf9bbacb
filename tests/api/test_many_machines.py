"""A model on a cluster: Dask sends its pickle to workers, which are killed while they run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

distributed = pytest.importorskip("distributed")

import cpuconv  # noqa: E402
from support.graphs import parse  # noqa: E402
from support.running.events import until  # noqa: E402

TEXT = "g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }"


def test_every_input_has_one_result_though_workers_die(tmp_path: Path) -> None:
    def predict(part: list[dict[str, np.ndarray]], model: cpuconv.Model, folder: str) -> list[np.ndarray]:
        """Run the model on a part, and leave a file per process that did so; local, as workers cannot import it."""
        (Path(folder) / str(os.getpid())).touch()
        time.sleep(0.02)
        return [outputs["y"] for outputs in cpuconv.map(model, part)]

    model = cpuconv.compile(parse(TEXT).SerializeToString(), threads=1, strategy="heuristic")
    feeds = [{"x": np.full((1, 4), at - 10, np.float32)} for at in range(200)]
    parts = [feeds[at : at + 5] for at in range(0, 200, 5)]
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        runs = client.map(predict, parts, model=model, folder=str(tmp_path), pure=False)
        killed: set[Path] = set()
        for _ in range(2):
            until(lambda: {*tmp_path.iterdir()} - killed or any(run.status == "error" for run in runs))
            assert not [run.exception() for run in runs if run.status == "error"]
            worker = ({*tmp_path.iterdir()} - killed).pop()
            os.kill(int(worker.name), signal.SIGKILL)
            killed.add(worker)
        results = [result for part in client.gather(runs) for result in part]
    assert len(results) == 200
    for at, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full((1, 4), max(0, at - 10), np.float32))
