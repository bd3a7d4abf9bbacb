"""Programs that call ONNX Runtime, unedited: `cpuconv exec` and the class that it installs."""

from __future__ import annotations

import json
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
from cpuconv.integrations.substitute import substitute  # noqa: E402
from support.graphs import parse  # noqa: E402

X = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
NETWORK = """g (float[1,3,8,8] x) => (float[1,4,8,8] y) <float[4,3,3,3] w> {
    y = Conv<pads = [1, 1, 1, 1]>(x, w)
}"""
STRINGS = "g (string[N] x) => (string[N] y) { y = Identity(x) }"
Original = ort.InferenceSession
Session = substitute(Original)


class PickledSession(Session):  # type: ignore[misc,valid-type]
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
    made = parse(NETWORK)
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "net.onnx"
    path.write_bytes(made.SerializeToString())
    return str(path)


def served(session) -> bool:
    return session._served is not None


def test_a_session_is_served_here_and_is_still_onnx_runtimes(model):
    session = Session(model, providers=["CPUExecutionProvider"])
    assert served(session) and isinstance(session, Original) and type(session).__name__ == "InferenceSession"
    np.testing.assert_allclose(session.run(None, {"x": X})[0], Original(model).run(None, {"x": X})[0], atol=1e-5)
    assert session.get_providers() == ["CPUExecutionProvider"] and session.get_inputs()[0].name == "x"
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], session.run(None, {"x": X})[0])


def test_subclasses_and_pickles(model):
    session = pickle.loads(pickle.dumps(PickledSession(model)))
    assert served(session) and isinstance(session, PickledSession)
    assert session.run(None, {"x": X})[0].shape == (1, 4, 8, 8)


def test_what_is_not_served_goes_to_onnx_runtime_with_the_reason(tmp_path):
    path = tmp_path / "strings.onnx"
    path.write_bytes(parse(STRINGS).SerializeToString())
    with pytest.warns(cpuconv.CpuconvWarning, match="ONNX Runtime runs .*strings.onnx: ") as told:
        session = Session(str(path))
    assert len(told) == 1 and not served(session)
    assert session.run(None, {"x": np.array(["a", "b"])})[0].tolist() == ["a", "b"]
    assert session.get_inputs()[0].type == "tensor(string)"


def test_a_profile_is_written_by_onnx_runtime(model, tmp_path):
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    with pytest.warns(cpuconv.CpuconvWarning, match="request a file: enable_profiling"):
        session = Session(model, options)
    session.run(None, {"x": X})
    assert Path(session.end_profiling()).stat().st_size > 0


def test_a_failure_of_a_run_goes_to_onnx_runtime_and_a_wrong_feed_does_not(model, monkeypatch):
    session = Session(model)
    with pytest.raises(cpuconv.ArgumentError):
        session.run(None, {"x": X[:, :2]})
    assert served(session)

    def fails(*given, **more):
        raise cpuconv.CpuconvError("out of programs")

    monkeypatch.setattr(session._served, "run", fails)
    with pytest.warns(cpuconv.CpuconvWarning, match="out of programs"):
        (result,) = session.run(None, {"x": X})
    assert not served(session) and result.shape == (1, 4, 8, 8)
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], result)


def test_an_unreadable_model_raises_onnx_runtimes_error(tmp_path):
    with pytest.warns(cpuconv.CpuconvWarning), pytest.raises(Exception, match="missing.onnx") as raised:
        Session(str(tmp_path / "missing.onnx"))
    assert type(raised.value).__module__.startswith("onnxruntime")


def test_options_of_the_program_win(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    two = substitute(Original, threads=2, precision="bfloat16")
    assert two(model)._served._model.threads <= 2
    session = two(model, options)
    assert session._served._model.threads == 1 and session.get_session_options().intra_op_num_threads == 1
    rounded, exact = session.run(None, {"x": X})[0], Session(model).run(None, {"x": X})[0]
    np.testing.assert_allclose(rounded, exact, atol=0.1)
    with pytest.raises(AttributeError):
        options.no_such_option = 1


PROGRAM = """
import sys
import numpy as np
from onnxruntime import InferenceSession
session = InferenceSession(sys.argv[1])
print(session.run(None, {"x": np.ones((1, 3, 8, 8), np.float32)})[0].shape, session._served is not None, sys.argv[2:])
sys.exit(7)
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_exec_runs_a_program(model, tmp_path, as_module):
    (tmp_path / "program.py").write_text(PROGRAM)
    named = ["-m", "program"] if as_module else ["program.py"]
    command = python("-m", "cpuconv", "exec", "--threads", "1", *named, model, "--json", "-x")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (7, "(1, 4, 8, 8) True ['--json', '-x']\n"), done.stderr


def test_errors_of_the_program_are_its_own(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import cpuconv\nraise cpuconv.ArgumentError('of the program')\n")
    done = subprocess.run(python("-m", "cpuconv", "exec", str(program)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" in done.stderr and "of the program" in done.stderr


def test_exec_refuses(capsys):
    assert main(["exec", "no_such_file.py"]) == USAGE
    assert "PROGRAM must be a Python file that exists" in capsys.readouterr().err


OCR = """
import json, sys
import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

image = Image.new("RGB", (640, 160), "white")
ImageDraw.Draw(image).text((30, 30), "Networks on the CPU", fill="black", font=ImageFont.load_default(40))
reader = RapidOCR()
found = reader(np.asarray(image))[0]
print(json.dumps([[line[1], line[0]] for line in found]))
print(hasattr(reader.text_rec.session.session, "_served"), file=sys.stderr)
"""


def test_rapidocr_unedited(tmp_path):
    pytest.importorskip("rapidocr_onnxruntime", exc_type=ImportError)
    program = tmp_path / "ocr.py"
    program.write_text(OCR)
    theirs, ours = (
        subprocess.run(python(*command, str(program)), capture_output=True, text=True, timeout=300)
        for command in ((), ("-m", "cpuconv", "exec"))
    )
    assert theirs.stderr.splitlines()[-1:] == ["False"] and ours.stderr.splitlines()[-1:] == ["True"], ours.stderr
    (word, box), (expected, other) = json.loads(ours.stdout)[0], json.loads(theirs.stdout)[0]
    assert word == expected == "Networks on the CPU"
    np.testing.assert_allclose(box, other, atol=1)
