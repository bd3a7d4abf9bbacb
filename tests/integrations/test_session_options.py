"""What a session is asked for and does not do, it says."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import CpuconvWarning
from cpuconv.runtime import threads
from support.graphs import parse

MODEL = parse("g (float[1,2] x) => (float[1,2] y) { y = Relu(x) }").SerializeToString()


def test_attributes_are_those_of_onnx_runtime() -> None:
    options = cpuconv.SessionOptions()
    with pytest.raises(
        AttributeError, match=r"no attribute 'intra_op_num_thread' \(did you mean 'intra_op_num_threads"
    ):
        options.intra_op_num_thread = 2
    with pytest.raises(AttributeError, match="no attribute 'fast'"):
        options.fast = True
    theirs = pytest.importorskip("onnxruntime").SessionOptions()
    for name in (each for each in dir(theirs) if not each.startswith("_")):
        if callable(getattr(theirs, name, None)):
            continue
        setattr(options, name, getattr(theirs, name))
    with pytest.raises(AttributeError):
        theirs.fast = True


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("enable_profiling", True, "no profile is written: `cpuconv profile MODEL`"),
        ("optimized_model_filepath", "net.onnx", "no optimised model is written"),
    ],
)
def test_files_that_are_not_written(name: str, value: object, words: str) -> None:
    options = cpuconv.SessionOptions()
    setattr(options, name, value)
    with pytest.warns(CpuconvWarning, match=words):
        assert cpuconv.InferenceSession(MODEL, options).end_profiling() == ""


def test_providers_without_the_cpu_warn() -> None:
    for asked in (["CUDAExecutionProvider"], [("TensorrtExecutionProvider", {}), "CUDAExecutionProvider"]):
        with pytest.warns(CpuconvWarning, match="everything runs on the CPU, none .*CUDAExecutionProvider"):
            cpuconv.InferenceSession(MODEL, providers=asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CpuconvWarning)
        for fine in (None, [], ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]):
            session = cpuconv.InferenceSession(MODEL, providers=fine)
    with pytest.warns(CpuconvWarning, match="CoreMLExecutionProvider"):
        session.set_providers(["CoreMLExecutionProvider"])


def test_threads_above_the_cores_are_clamped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_told_of_cores", False)
    options = cpuconv.SessionOptions()
    options.intra_op_num_threads = 10**4
    with pytest.warns(CpuconvWarning, match="10000 threads are more than the cores"):
        session = cpuconv.InferenceSession(MODEL, options)
    assert session.run(None, {"x": np.float32([[-1, 1]])})[0].tolist() == [[0, 1]]
