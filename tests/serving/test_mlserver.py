"""The runtime of MLServer: its server answers a client, and adaptive batching takes fewer runs than requests."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlserver")

from mlserver import ModelSettings  # noqa: E402
from mlserver.batching.adaptive import AdaptiveBatcher  # noqa: E402
from mlserver.context import model_context  # noqa: E402
from mlserver.errors import InferenceError  # noqa: E402
from mlserver.types import InferenceRequest  # noqa: E402

from baselib.interpreter import python  # noqa: E402
from cpuconv.serving.mlserver import CpuconvRuntime  # noqa: E402
from support.graphs import parse  # noqa: E402
from support.running.events import until  # noqa: E402

WEIGHTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
REQUESTS = 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = parse("g (float[1,4] x) => (float[1,3] y) { y = MatMul(x, w) }", w=WEIGHTS)
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    (tmp_path / "model-settings.json").write_text(json.dumps(SETTINGS | {"parameters": PARAMETERS}))
    return tmp_path


SETTINGS: dict[str, Any] = {
    "name": "net",
    "implementation": "cpuconv.serving.mlserver.CpuconvRuntime",
    "max_batch_size": 8,
    "max_batch_time": 0.2,
}
PARAMETERS: dict[str, Any] = {
    "uri": "./net.onnx",
    "extra": {"threads": 1, "strategy": "heuristic", "batches": [1, 8]},
}


def request_of(rows: np.ndarray) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [*rows.shape], "datatype": "FP32", "data": rows.ravel().tolist()}
    return {"inputs": [tensor]}


def check(outputs: list[dict[str, Any]], rows: np.ndarray) -> None:
    (output,) = outputs
    assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [len(rows), 3])
    np.testing.assert_allclose(np.reshape(output["data"], (-1, 3)), rows @ WEIGHTS, rtol=1e-4, atol=1e-5)


def rows_of(at: int) -> np.ndarray:
    return np.random.default_rng(at).normal(size=(1 + at % 2, 4)).astype(np.float32)


def test_adaptive_batching_and_errors(folder: Path) -> None:
    parameters = PARAMETERS | {"uri": str(folder / "net.onnx")}
    runtime = CpuconvRuntime(ModelSettings.model_validate(SETTINGS | {"parameters": parameters}))

    async def answered() -> list[Any]:
        assert await runtime.load()
        requests = [InferenceRequest.model_validate(request_of(rows_of(at))) for at in range(REQUESTS)]
        with model_context(runtime.settings):
            batcher = AdaptiveBatcher(runtime)
            return await asyncio.gather(*(batcher.predict(each) for each in requests))

    for at, response in enumerate(asyncio.run(answered())):
        check([each.model_dump() for each in response.outputs], rows_of(at))
    assert runtime._model.stats().runs < REQUESTS
    (port,) = runtime.inputs
    assert (port.name, port.shape) == ("x", [-1, 4])
    wrong = request_of(np.zeros((1, 5), np.float32)), request_of(rows_of(0)) | {"outputs": [{"name": "z"}]}
    for each, word in zip(wrong, ("feed", "'z'"), strict=True):
        with pytest.raises(InferenceError, match=word):
            asyncio.run(runtime.predict(InferenceRequest.model_validate(each)))


def test_a_server_answers_its_clients(folder: Path) -> None:
    ports = [_free_port() for _ in range(3)]
    named = dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True))
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0} | named))
    command = [*python(), "-c", "from mlserver.cli.main import main; main()", "start", str(folder)]
    url = f"http://127.0.0.1:{ports[0]}/v2/models/net"
    with subprocess.Popen(command, cwd=folder, env=dict(os.environ)) as server:
        try:
            until(lambda: server.poll() is not None or _is_ready(f"{url}/ready"))
            with ThreadPoolExecutor(REQUESTS) as callers:
                answers = callers.map(lambda at: _posted(f"{url}/infer", request_of(rows_of(at))), range(REQUESTS))
                for at, answer in enumerate(answers):
                    check(answer["outputs"], rows_of(at))
            with pytest.raises(urllib.error.HTTPError) as refused:
                _posted(f"{url}/infer", {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]})
            assert refused.value.code == 400
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert json.load(answer)["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        finally:
            server.terminate()


def _posted(url: str, content: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        made: dict[str, Any] = json.load(answer)
        return made


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
