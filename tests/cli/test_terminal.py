"""The commands on a real terminal of 80 columns, and without the package onnx."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from autotune.cli.main import main as autotune
from autotune.cli.options import FAILED, OK, USAGE
from baselib.interpreter import python
from cpuconv.cli.main import main
from support.graphs import parse
from support.running import terminal
from support.running.terminal import COLUMNS

WEIGHTS = ", ".join(str(at % 7 - 3) for at in range(16 * 3 * 9))
NET = f"""stages_of_a_network (float[1,3,12,12] x) => (float[1,16,12,12] result) <float[16,3,3,3] w = {{{WEIGHTS}}}> {{
    backbone_first_block_convolution = Conv<pads = [1, 1, 1, 1]>(x, w)
    result = Relu(backbone_first_block_convolution)
}}"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The file of a network of one convolution."""
    made = parse(NET, 17)
    made.graph.node[0].name = "/backbone/first/block/convolution/of/a/long/name"
    onnx.save(made, tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


def on_terminal(*arguments: str) -> tuple[list[str], int]:
    """Lines that a process shows on a terminal, and its exit code."""
    screen = terminal.on_terminal(python(*arguments))
    return screen.lines, screen.code


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["-m", "cpuconv", "explain", "{model}"], "left out for width: "),
        (["-m", "cpuconv", "profile", "{model}", "--runs", "2"], "left out for width: "),
        (["-m", "cpuconv", "run", "{model}"], "second run: "),
        (["-m", "autotune", "explain", "{problem}"], "--wide shows all"),
        (["-m", "autotune", "doctor"], "store "),
        (["-m", "autotune", "doctor", "--verbose"], "workload sources"),
        (["-m", "autotune", "show"], "problems"),
    ],
)
def test_tables_fit(command: list[str], shown: str, model: str) -> None:
    problem = "g1mb1ic3ih12iw12oc16oh12ow12kh3kw3sh1sw1ph1pw1dh0dw0"
    arguments = [part.format(model=model, problem=problem) for part in command]
    lines, code = on_terminal(*arguments)
    assert code == OK, lines
    table = [line for line in lines if model not in line]  # progress names the file
    assert max(map(len, table)) <= COLUMNS, max(table, key=len)
    assert any(shown in line for line in table), lines
    assert not any("Traceback" in line for line in lines)


def test_wide_shows_all_columns(model: str) -> None:
    lines, code = on_terminal("-m", "cpuconv", "explain", model, "--wide")
    assert code == OK and not any("left out for width" in line for line in lines)
    heads = next(line for line in lines if line.startswith("operator"))
    assert heads.split("  ")[0] == "operator" and "layouts" in heads and "decided by" in heads
    assert any("/backbone/first/block/convolution/of/a/long/name" in line for line in lines)


def test_a_report_at_the_prompt_is_its_table() -> None:
    code = "import cpuconv, sys\nsys.displayhook(cpuconv.explain((1, 64, 56, 56), (64, 64, 3, 3), padding=1))\n"
    lines, ended = on_terminal("-c", code)
    assert ended == 0 and max(map(len, lines)) <= COLUMNS
    assert any(line.startswith("   candidate") for line in lines), lines
    assert "Explanation(" not in "".join(lines)


def test_quantize_without_onnx_is_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "sample.npz", x=np.zeros((1, 3, 12, 12), np.float32))
    monkeypatch.setitem(sys.modules, "onnx.shape_inference", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["quantize", model, "-o", str(tmp_path / "int8.onnx"), "--data", str(tmp_path)]) == USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "package onnx, which cannot be imported" in line and line.endswith("pip install 'cpuconv[onnx]'")


def test_errors_name_options_and_not_arguments(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "--precision", "auto"]) == USAGE
    assert capsys.readouterr().err.startswith("cpuconv: --samples must be ")
    assert main(["run", model, "--node-precision", "nowhere=bf16"]) == USAGE
    assert capsys.readouterr().err.startswith("cpuconv: --node-precision must be a dict whose keys are node names")
    assert main(["quantize", model, "-o", str(tmp_path / "q.onnx"), "--data", str(tmp_path / "none")]) == USAGE
    assert capsys.readouterr().err.startswith("cpuconv: --data must be a folder")


def test_temporary_names_never_show(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "none" / "net.cpuconv"
    assert main(["compile", model, "-o", str(target)]) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert str(target) in line and ".part" not in line


def test_aliases_of_precisions(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model, "--precision", "bf16", "--json"]) == OK
    aliased = json.loads(capsys.readouterr().out)
    assert main(["explain", model, "--precision", "bfloat16", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == aliased
    with pytest.raises(SystemExit):
        main(["run", model, "--precision", "int8"])
    assert "cpuconv.quantize makes an int8 network" in capsys.readouterr().err


def test_threads_above_the_cores_run_with_a_line(model: str, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("cpuconv.runtime.threads._told_of_cores", False)
    assert main(["run", model, "--threads", "4096"]) == OK
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cpuconv: 4096 threads are more than the cores this process may use")
    problem = "g1mb1ic3ih12iw12oc16oh12ow12kh3kw3sh1sw1ph1pw1dh0dw0"
    assert autotune(["explain", problem, "--threads", "4096"]) == OK
    assert "autotune: --threads 4096 exceeds the allowed number" in capsys.readouterr().err


def test_the_time_left_of_a_warmup_is_within_the_screen() -> None:
    code = """
import time
from autotune.cli.display import display
from autotune.tuning.progress import Progress
with display() as show:
    show(Progress("time", "g1mb1ic512ih14iw14oc512oh14ow14kh3kw3", 12, 127, 0.5, 1234.5, 754.0, False))
    time.sleep(0.5)
"""
    screen = terminal.on_terminal(python("-c", code))
    assert screen.first(r"1234\.5 GFLOP/s, 12 of 127, 12:34 left") < screen.seconds
