"""Programs that call ONNX Runtime, unedited: `cpuconv exec` and the class that it installs."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import cpuconv  # noqa: E402
from autotune.cli.options import USAGE  # noqa: E402
from baselib.interpreter import python  # noqa: E402
from cpuconv.cli.main import main  # noqa: E402
from support.graphs import parse  # noqa: E402
from support.serving import is_served, serving  # noqa: E402

X = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
NETWORK = """g (float[1,3,8,8] x) => (float[1,4,8,8] y) <float[4,3,3,3] w> {
    y = Conv<pads = [1, 1, 1, 1]>(x, w)
}"""
STRINGS = "g (string[N] x) => (string[N] y) { y = Identity(x) }"
SYMBOL = "g (float[n] x, float[n] y) => (float[n] z) { z = Add(x, y) }"


class PickledSession(ort.InferenceSession):
    """A session as insightface has it."""

    def __init__(self, model_path, **more):
        super().__init__(model_path, **more)
        self.model_path = model_path

    def __getstate__(self):
        return {"model_path": self.model_path}

    def __setstate__(self, values):
        self.__init__(values["model_path"])


@pytest.fixture
def model(tmp_path: Path) -> str:
    made = parse(NETWORK, w=np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32))
    onnx.save(
        made, tmp_path / "net.onnx", save_as_external_data=True, all_tensors_to_one_file=True, location="net.data",
        size_threshold=0,
    )  # fmt: skip
    return str(tmp_path / "net.onnx")


@pytest.fixture
def served():
    with serving():
        yield


@pytest.fixture
def original(model):
    return ort.InferenceSession(model).run(None, {"x": X})[0]


def test_a_session_is_served_here_and_is_still_onnx_runtimes(model, original, served):
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert is_served(session)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], original, atol=1e-5)


def test_subclasses_and_pickles(model, served):
    session = pickle.loads(pickle.dumps(PickledSession(model)))
    assert is_served(session) and isinstance(session, PickledSession)
    assert session.run(None, {"x": X})[0].shape == (1, 4, 8, 8)


def test_what_is_not_served_goes_to_onnx_runtime_with_the_reason(tmp_path, served):
    path = tmp_path / "strings.onnx"
    path.write_bytes(parse(STRINGS).SerializeToString())
    with pytest.warns(cpuconv.CpuconvWarning, match="ONNX Runtime runs .*strings.onnx: ") as warned:
        session = ort.InferenceSession(str(path))
    assert len(warned) == 1 and not is_served(session) and warned[0].filename == __file__
    assert session.run(None, {"x": np.array(["a", "b"])})[0].tolist() == ["a", "b"]
    assert session.get_inputs()[0].type == "tensor(string)" and session.get_providers() == ["CPUExecutionProvider"]


def test_a_profile_is_written_by_onnx_runtime(model, tmp_path, served):
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    with pytest.warns(cpuconv.CpuconvWarning, match="request a file: enable_profiling"):
        session = ort.InferenceSession(model, options)
    session.run(None, {"x": X})
    assert Path(session.end_profiling()).stat().st_size > 0


def test_options_that_onnx_runtime_alone_follows(model, served):
    options = ort.SessionOptions()
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.zeros((4, 3, 3, 3), np.float32)))
    with pytest.warns(cpuconv.CpuconvWarning, match="its options have add_initializer"):
        session = ort.InferenceSession(model, options)
    assert not is_served(session)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with pytest.warns(cpuconv.CpuconvWarning, match="its options have session.record_ep_graph_assignment_info"):
        assert not is_served(ort.InferenceSession(model, options))


def test_a_run_that_is_refused_here_alone_goes_to_onnx_runtime(served):
    """Two inputs that share a symbol and differ in size: ONNX Runtime repeats the one element."""
    session = ort.InferenceSession(parse(SYMBOL).SerializeToString())
    feed = {"x": np.arange(3, dtype=np.float32), "y": np.ones(1, np.float32)}
    for wrong in ({"x": feed["x"]}, {**feed, "y": np.ones(1)}):
        with pytest.raises(Exception, match="input"):
            session.run(None, wrong)
    assert is_served(session)
    binding, other = session.io_binding(), session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
        other.bind_cpu_input(name, array[:1])
    binding.bind_output("z")
    other.bind_output("z")
    with pytest.warns(cpuconv.CpuconvWarning, match="ONNX Runtime runs a model: .*'feed") as warned:
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == [1, 2, 3]
        assert session.run(None, feed)[0].tolist() == [1, 2, 3]
        session.run_with_iobinding(other)
        assert other.copy_outputs_to_cpu()[0].tolist() == [1] and other.get_outputs()[0].shape() == [1]
    assert not is_served(session) and len(warned) == 1


def test_what_onnx_runtime_cannot_load_again_raises_the_refusal(model, served):
    session = ort.InferenceSession(model)
    Path(model).unlink()
    with pytest.raises(cpuconv.ArgumentError, match="rank"):
        session.run(None, {"x": X[0]})
    assert is_served(session)


def test_a_stopped_run_is_not_run_again(model, served):
    session, options = ort.InferenceSession(model), ort.RunOptions()
    options.terminate = True
    with pytest.raises(cpuconv.RunStopped):
        session.run(None, {"x": X}, options)
    assert is_served(session)


def test_options_of_the_program_win(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    with serving(threads=2, precision="bfloat16"):
        assert ort.InferenceSession(model)._sess._served._model.threads <= 2
        session = ort.InferenceSession(model, options)
    assert session._sess._served._model.threads == 1 and session.get_session_options().intra_op_num_threads == 1
    with serving():
        exact = ort.InferenceSession(model).run(None, {"x": X})[0]
    rounded = session.run(None, {"x": X})[0]
    np.testing.assert_allclose(rounded, exact, atol=0.1)


def test_available_providers_elsewhere_warn(model, served, monkeypatch):
    from onnxruntime.capi import _pybind_state, onnxruntime_pybind11_state

    names = ["XnnpackExecutionProvider", "CPUExecutionProvider"]
    for module in (_pybind_state, onnxruntime_pybind11_state):
        monkeypatch.setattr(module, "get_available_providers", lambda: names)
    with pytest.warns(cpuconv.CpuconvWarning, match="everything runs on the CPU, nothing on Xnnpack"):
        session = ort.InferenceSession(model, providers=names)
    assert session.get_providers() == ["CPUExecutionProvider"]


PROGRAM = """
import platform, resource, sys
import numpy as np
from onnxruntime import InferenceSession
session = InferenceSession(sys.argv[1])
print(session.run(None, {"x": np.ones((1, 3, 8, 8), np.float32)})[0].shape, session._sess.served, sys.argv[2:])
faults = []
for _ in range(4):
    np.ones(1 << 23, np.uint8)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0] < 100 or platform.libc_ver()[0] != "glibc")
sys.exit(7)
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_exec_runs_a_program(model, tmp_path, as_module):
    (tmp_path / "program.py").write_text(PROGRAM)
    named = ["-m", "program"] if as_module else ["program.py"]
    command = python("-m", "cpuconv", "exec", "--threads", "1", *named, model, "--json", "-x")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (7, "(1, 4, 8, 8) True ['--json', '-x']\nTrue\n"), done.stderr


def test_errors_of_the_program_are_its_own(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import cpuconv\nraise cpuconv.ArgumentError('of the program')\n")
    done = subprocess.run(python("-m", "cpuconv", "exec", str(program)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" in done.stderr and "of the program" in done.stderr


def test_exec_refuses(capsys):
    assert main(["exec", "no_such_file.py"]) == USAGE
    assert "PROGRAM must be a Python file that exists" in capsys.readouterr().err
