"""Types of the public calls, as a checker of users' programs sees them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import layouts
from cpuconv import option_types
from cpuconv.api.network import HINTS
from cpuconv.conv.choice.model import ACCURACIES, STRATEGIES
from cpuconv.conv.choice.target import PRECISION_ALIASES, PRECISIONS
from cpuconv.problem.activation import names, scalars_of
from support.running.processes import ROOT

STRICT = """
# mypy: disallow-any-generics, disallow-subclassing-any, disallow-untyped-calls, disallow-untyped-defs
# mypy: disallow-incomplete-defs, check-untyped-defs, disallow-untyped-decorators, warn-redundant-casts
# mypy: warn-unused-ignores, warn-return-any, no-implicit-reexport, strict-equality, strict-bytes, extra-checks
"""
"""What `mypy --strict` sets, for one file: this project's own settings, and what mypy has cached by them, serve all
others."""

RIGHT = """
import numpy as np
import cpuconv
from numpy.typing import NDArray

x: NDArray[np.float32] = np.zeros((1, 3, 8, 8), np.float32)
w = np.zeros((4, 3, 3, 3), np.float32)
plan = cpuconv.plan(x.shape, w, padding="same", activation=("clip", 0.0, 6.0), in_layout="auto", threads="auto")
model = cpuconv.compile("net.onnx", precision="bf16", node_precisions={"fc": "f32"})
explained = cpuconv.explain((1, 3, 8, 8), (4, 3, 3, 3), stride=2, activation="relu")
reveal_type(cpuconv.conv2d(x, w, activation="relu", padding=(1, 1)))
reveal_type(plan(x))
reveal_type(cpuconv.reorder(x, "NCHW", plan.in_layout))
reveal_type(model(x))
reveal_type(model.run({"x": x}))
reveal_type(cpuconv.conv2d(x, w, y_dtype="float32"))
"""
WRONG = {
    'cpuconv.conv2d(x, w, activation="rleu")': "rleu",
    'cpuconv.conv2d(x, w, in_layout="NCWH")': "NCWH",
    'cpuconv.plan(x.shape, w, strategy="tuned")': "tuned",
    'cpuconv.compile("net.onnx", precision="int8")': "int8",
    'cpuconv.compile("net.onnx", accuracy="high")': "high",
    'cpuconv.load("net.cpuconv", strategy="best")': "best",
    'cpuconv.explain((1, 3, 8, 8), (4, 3, 3, 3), algoritm="direct")': "algoritm",
    'cpuconv.reorder(x, "NCHW", "NHCW")': "NHCW",
}


def test_a_strict_checker_refuses_misspelt_options_and_knows_results(tmp_path: Path) -> None:
    lines = [*STRICT.strip().splitlines(), *RIGHT.strip().splitlines()]
    file = tmp_path / "program.py"
    file.write_text("\n".join([*lines, *WRONG]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(file)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    found: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        if match := re.match(r".*program\.py:(\d+): (error|note): (.*)", line):
            found.setdefault(int(match[1]), []).append(f"{match[2]}: {match[3]}")
    revealed = [text for at in range(1, len(lines) + 1) for text in found.get(at, [])]
    assert not [text for text in revealed if text.startswith("error")], revealed
    assert all("ndarray" in text for text in revealed) and len(revealed) == 6, revealed
    assert "32" in revealed[0].partition("dtype")[2], revealed[0]
    for at, (call, word) in enumerate(WRONG.items(), start=len(lines) + 1):
        assert any(text.startswith("error") for text in found.get(at, [])), (call, done.stdout, word)


def test_literals_are_what_calls_take() -> None:
    assert set(get_args(option_types.Strategy)) == set(STRATEGIES)
    assert set(get_args(option_types.Accuracy)) == set(ACCURACIES)
    assert get_args(option_types.Hint) == HINTS
    assert set(get_args(option_types.Precision)) == {*PRECISIONS, *PRECISION_ALIASES}
    assert set(get_args(option_types.PrecisionOrAuto)) == {*PRECISIONS, *PRECISION_ALIASES, "auto"}
    assert set(get_args(option_types.LayoutName)) == {*layouts.NAMES, *layouts.ALIASES}
    assert set(get_args(option_types.ActivationName)) == {name for name in names() if not scalars_of(name)}
