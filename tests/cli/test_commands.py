"""`cpuconv run`, `profile` and `explain`, as a user runs them."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cli.options import FAILED, INTERRUPTED, OK, USAGE
from baselib.interpreter import python
from cpuconv.cli.feeds import loaded
from cpuconv.cli.main import main
from cpuconv.errors import ArgumentError
from cpuconv.runtime.code.packs import active_pack
from support.graphs import close, parse
from support.graphs import run as interpreted
from support.running.processes import run

TEXT = """g (float[N,3,H,8] image, float[N,1] shift, int64[2] pair) => (float[N,4,H,8] all, float[N,4,1,1] "all/mean")
<float[4,3,1,1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
    convolved = Conv(image, w)
    last = Constant<value = int64[2] {2, 3}>()
    longer = Unsqueeze(shift, last)
    all = Add(convolved, longer)
    "all/mean" = ReduceMean(all, last)
}"""
IMAGE = np.random.default_rng(1).standard_normal((2, 3, 5, 8)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The file of a network of three inputs, with open sizes and an output whose name no file can have."""
    path = tmp_path / "net.onnx"
    onnx.save(parse(TEXT, 18), path)
    return str(path)


@pytest.fixture
def image(tmp_path: Path) -> str:
    """The file of an array for the first input."""
    np.save(tmp_path / "image.npy", IMAGE)
    return str(tmp_path / "image.npy")


def test_the_whole_way(model: str, image: str, tmp_path: Path) -> None:
    done = run("-m", "cpuconv", "run", model, "--input", f"image={image}", "--output", str(tmp_path / "new" / "out"))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[2][:3] == ["image", "2x3x5x8", "float32"] and lines[2][-1] == image
    assert lines[3][:3] == ["shift", "2x1", "float32"] and lines[3][-1] == "random"
    outputs = {path.name: np.load(path) for path in (tmp_path / "new" / "out").iterdir()}
    assert outputs.keys() == {"all.npy", "all%2Fmean.npy"}
    shown = next(line for line in lines if line[:1] == ["all"])
    assert shown[1:3] == ["2x4x5x8", "float32"]
    figures = outputs["all.npy"].min(), outputs["all.npy"].mean(dtype=np.float64), outputs["all.npy"].max()
    assert [float(text) for text in shown[3:]] == pytest.approx(figures, rel=1e-5)
    assert "second run: " in done.stdout and done.stderr == ""


def test_what_is_written_is_what_the_network_computes(model: str, image: str, tmp_path: Path) -> None:
    shift, pair = np.float32([[0.5], [-2]]), np.array([3, 4])
    np.save(tmp_path / "shift.npy", shift)
    np.save(tmp_path / "pair.npy", pair)
    feed = {"image": IMAGE, "shift": shift, "pair": pair}
    inputs = [f"--input=image={image}", *(f"--input={name}={tmp_path / name}.npy" for name in ("shift", "pair"))]
    assert main(["run", model, *inputs, "--output", str(tmp_path), "--threads", "1"]) == OK
    for name, expected in zip(("all", "all%2Fmean"), interpreted(model, feed), strict=True):
        close(np.load(tmp_path / f"{name}.npy"), expected)


def test_json(model: str, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [model, "--shape", "H=5", "--shape", "N=2", "--threads", "1", "--json", "--strategy", "heuristic"]
    assert main(["run", *common, "--output", str(tmp_path)]) == OK
    told = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["shape"], each["from"]) for each in told["inputs"]] == [
        ("image", [2, 3, 5, 8], "random"),
        ("shift", [2, 1], "random"),
        ("pair", [2], "random"),
    ]
    assert 0 <= told["inputs"][2]["min"] <= told["inputs"][2]["max"] < 10
    assert [each["name"] for each in told["outputs"]] == ["all", "all/mean"]
    assert told["threads"] == 1 and told["seconds"] > 0
    assert np.load(told["files"]["all/mean"]).shape == (2, 4, 1, 1)

    assert main(["explain", *common]) == OK
    told = json.loads(capsys.readouterr().out)
    assert "Conv" in [each["op"] for each in told["operators"]]

    assert main(["profile", *common, "--runs", "2", "--input", f"image={image}"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert sum(row["share"] for row in told["rows"]) == pytest.approx(1) and told["seconds"] > 0


def test_a_compiled_file_takes_the_place_of_the_model(
    model: str, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "net.cpuconv")
    options = ["--threads", "1", "--strategy", "heuristic"]
    assert main(["compile", model, "-o", file, "--shape", "N=2", *options]) == OK
    assert capsys.readouterr().out == f"{file}: {Path(file).stat().st_size / 1e6:.2f} MB, for 1 thread\n"
    told = {}
    for each, more in ((model, options), (file, [])):
        asked = [each, *more, "--shape", "H=5", "--json", "--input", f"image={image}"]
        assert main(["run", *asked, "--output", str(tmp_path / "out")]) == OK
        told[each] = json.loads(capsys.readouterr().out), np.load(tmp_path / "out" / "all.npy")
    np.testing.assert_array_equal(told[file][1], told[model][1])
    assert told[file][0]["inputs"] == told[model][0]["inputs"] and told[file][0]["threads"] == 1
    assert main(["run", file, "--shape", "N=3", "--shape", "H=5"]) == USAGE  # N was stated
    assert main(["run", file, "--shape", "H=5", "--strict"]) == USAGE
    assert "--strict" in capsys.readouterr().err

    closed = str(tmp_path / "closed.cpuconv")
    assert main(["compile", file, "-o", closed, "--shape", "image=2x3x5x8", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["bytes"] == Path(closed).stat().st_size
    assert main(["explain", closed]) == OK and "2x4x5x8" in capsys.readouterr().out
    assert main(["profile", closed, "--runs", "1"]) == OK and "whole run" in capsys.readouterr().out
    assert main(["compile", model, "-o", str(tmp_path / "none" / "net.cpuconv")]) == FAILED


def test_kernels_go_into_the_file_and_are_used_where_it_is_trusted(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, whole = (str(tmp_path / f"{name}.cpuconv") for name in ("plain", "whole"))
    options = ["--shape", "image=2x3x5x8", "--threads", "1", "--strategy", "heuristic"]
    assert main(["compile", model, "-o", plain, *options]) == OK
    assert main(["compile", model, "-o", whole, *options, "--kernels"]) == OK
    assert Path(whole).stat().st_size > Path(plain).stat().st_size + 1000
    trusted = []
    monkeypatch.setattr(active_pack, "trust", trusted.append)
    assert main(["run", whole]) == OK and not trusted
    assert main(["run", whole, "--trust-kernels"]) == OK and len(trusted) == 1
    capsys.readouterr()
    assert main(["run", model, *options, "--trust-kernels"]) == USAGE
    assert "--trust-kernels" in capsys.readouterr().err


def test_what_is_printed_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model, "--shape", "image=2x3x5x8"]) == OK
    assert "2x4x5x8" in capsys.readouterr().out
    assert main(["profile", model, "--shape", "H=5", "--runs", "1"]) == OK
    assert "whole run" in capsys.readouterr().out


def test_random_numbers_follow_from_the_seed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for seed in ("0", "0", "1"):
        assert main(["run", model, "--shape", "H=5", "--json", "--seed", seed, "--input", "image=random"]) == OK
        told.append(json.loads(capsys.readouterr().out)["outputs"])
    assert told[0] == told[1] != told[2]
    assert told[0][0]["shape"] == [1, 4, 5, 8]  # a first axis is 1


def test_figures_of_what_is_not_finite_and_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(parse("g (float[N] x, bool[2] b) => (float[N] y, bool[2] c) { y = Sqrt(x) c = Not(b) }"), path)
    np.save(tmp_path / "x.npy", np.float32([-1, np.inf]))
    np.save(tmp_path / "none.npy", np.zeros(0, np.float32))
    assert main(["run", str(path), "--input", f"x={tmp_path}/x.npy", "--json"]) == OK
    (y, c) = json.loads(capsys.readouterr().out)["outputs"]
    assert (y["min"], y["max"]) == ("nan", "nan") and c["dtype"] == "bool" and 0 <= c["mean"] <= 1
    assert main(["run", str(path), "--input", f"x={tmp_path}/none.npy", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["outputs"][0]["max"] is None


def _foreign(tmp_path: Path) -> str:
    path = tmp_path / "foreign.onnx"
    onnx.save(parse("g (float[2,3] x) => (float[2,3] y) { y = Sinh(x) }"), path)
    return str(path)


def test_operators_without_kernels_are_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", _foreign(tmp_path)]) == OK
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cpuconv: ") and "Sinh run through the reference evaluator" in line
    assert main(["run", _foreign(tmp_path), "--strict"]) == USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "has operators without kernels: Sinh" in line


# --- what is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "profile", "explain"])
def test_models_that_cannot_be_read(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.onnx").write_bytes(parse(TEXT, 18).SerializeToString()[:-20])
    for name, words in (("none.onnx", "none.onnx' must be an ONNX file that can be read"), ("cut.onnx", "cut must be")):
        assert main([command, str(tmp_path / name)]) == USAGE
        told = capsys.readouterr()
        assert words in told.err and told.err.startswith("cpuconv: ") and told.err.count("\n") == 1
        assert told.out == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--input", "picture=random"], r"--input must be for one of image: float32\[N,3,H,8\], .*'picture'"),
        (["--input", "image=nowhere.npy"], "--input image must be a .npy file that can be read, not 'nowhere.npy'"),
        (["--input", "image={folder}"], "--input image must be a .npy file that can be read"),
        (["--input", "image={folder}/net.onnx"], "--input image must be a .npy file that can be read"),
        (["--input", "image={folder}/many.npz"], "--input image must be a .npy file that can be read"),
        (["--input", "image={folder}/object.npy"], "--input image must be a .npy file that can be read"),
        (["--input", "image={folder}/flat.npy"], r"--input image must be .* float32\[N,3,H,8\], not .* float32\[3\]"),
        (["--input", "image={folder}/wide.npy"], r"--input image must be an array of float32.* float64\[2,3,5,8\]"),
        (["--input", "shift={folder}/image.npy"], r"--input shift must be an array of float32\[N,1\]"),
        (["--input", "image={folder}/image.npy", "--shape", "N=3"], "--shape N must be 2"),
        (["--input", "image={folder}/image.npy", "--shape", "image=2x3x6x8"], "--input image must be .* 2x3x6x8"),
        (["--input", "image={folder}/image.npy", "--shape", "shift=3x1"], r"--shape shift must be .*'N': 2"),
        (["--shape", "H=5x5"], "--shape H must be one size, not 5x5"),
        (["--shape", "Z=5"], "--shape must be for one of image: .*'Z'"),
        (["--shape", "image=1x4x5x8"], r"--shape image must be sizes that fit float32\[N,3,H,8\], not 1x4x5x8"),
        ([], r"--shape must be given for image: float32\[N,3,H,8\], whose sizes the model leaves open, not left out"),
    ],
)
def test_wrong_inputs(
    options: list[str], words: str, model: str, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "many.npz", IMAGE)
    np.save(tmp_path / "object.npy", np.array([{}]))
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "wide.npy", IMAGE.astype(np.float64))
    assert main(["run", model, *(option.format(folder=tmp_path) for option in options)]) == USAGE
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith("cpuconv: --") and told.out == ""
    assert re.search(words, line), line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--input", "image"], "argument --input: must be 'NAME=file.npy' or 'NAME=random', not 'image'"),
        (["--shape", "image=ax3"], "argument --shape: must be 'NAME=1x3x224x224', not 'image=ax3'"),
        (["--threads", "0"], "argument --threads: must be positive"),
        (["--accuracy", "some"], "argument --accuracy: invalid choice"),
        (["--strategy", "best"], "argument --strategy: invalid choice"),
        (["--output", "{model}"], "argument --output: must be a folder, or a new one"),
    ],
)
def test_wrong_usage(options: list[str], words: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", model, *(option.format(model=model) for option in options)])
    assert ended.value.code == USAGE
    assert words in capsys.readouterr().err


@settings(max_examples=200)
@given(
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4), cut=st.booleans()
)
def test_every_damaged_array_is_an_error_or_an_array(tmp_path_factory, changes, cut) -> None:
    stream = io.BytesIO()
    np.save(stream, IMAGE[:1, :1])
    data = bytearray(stream.getvalue())
    for place, byte in changes:
        data[place % len(data)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.npy"
    path.write_bytes(data[: changes[0][0] % len(data)] if cut else data)
    try:
        assert isinstance(loaded("image", str(path)), np.ndarray)
    except ArgumentError as error:
        assert "--input image" in str(error)


def test_outputs_are_written_whole_or_not_at_all(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["run", model, "--shape", "H=5", "--output"]
    assert main([*common, str(tmp_path / "net.onnx" / "out")]) == FAILED
    told = capsys.readouterr()
    assert "net.onnx" in told.err and told.err.count("\n") == 1 and told.out == ""

    def full(handle: int) -> None:
        raise OSError("no space left on the disk")

    folder = tmp_path / "out"
    monkeypatch.setattr("os.fsync", full)  # of the first file, complete under another name
    assert main([*common, str(folder)]) == FAILED
    assert capsys.readouterr().err == "cpuconv: no space left on the disk\n"
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent otherwise there")
def test_interrupt(model: str) -> None:
    code = (
        "import sys, cpuconv; from cpuconv.cli.main import main\n"
        "inner = cpuconv.Model.profile\n"
        "def profile(model, feed, runs, watch):\n"
        "    print('begun', flush=True)\n"
        "    while True: inner(model, feed, runs)\n"
        "cpuconv.Model.profile = profile\n"
        f"sys.exit(main(['profile', {model!r}, '--shape', 'H=5']))"
    )
    process = subprocess.Popen(
        python("-c", code),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in background jobs
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (INTERRUPTED, "", "cpuconv: interrupted\n")
