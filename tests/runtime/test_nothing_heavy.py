"""Where kernels are on disk, nothing of Numba and of LLVM is imported: for a convolution, or a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.models import conv, save
from support.running import processes

_TOLD = """
import sys
from cpuconv.runtime.code.cache import Statistics
print(Statistics.compiled, [name for name in sys.modules if name.partition(".")[0] in ("numba", "llvmlite")])
"""
_BEFORE = "import numpy as np, cpuconv\nx = np.ones((1, 3, 12, 12), np.float32)\n"


def twice(code: str) -> str:
    """What the second of two such processes says, as the first one has compiled what was missing."""
    processes.run("-c", _BEFORE + code)
    return processes.run("-c", _BEFORE + code + _TOLD).stdout.strip()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_convolution(threads: int) -> None:
    code = (
        f"y = cpuconv.conv2d(x, np.ones((8, 3, 3, 3), np.float32), threads=min({threads}, cpuconv.get_num_threads()))"
    )
    assert twice(code) == "0 []"


def test_a_model(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx import helper

    nodes = [conv(y="h", pads=[1, 1, 1, 1]), helper.make_node("Relu", ["h"], ["y"])]
    path, saved = save(tmp_path / "m.onnx", nodes, {"x": (1, 3, 12, 12)}, {"w": (8, 3, 3, 3)}), str(tmp_path / "m")
    run = f"model = cpuconv.compile({path!r}, threads=1)\nmodel.run({{'x': x}})\nmodel.save({saved!r})"
    assert twice(run) == "0 []"
    assert twice(f"cpuconv.load({saved!r}, threads=1).run({{'x': x}})") == "0 []"


def test_what_stands_for_values_of_llvmlite_is_replaced_by_them() -> None:
    code = """
import sys, cpuconv
from cpuconv.runtime.code import llvm
def standing():
    there = [module for name, module in sys.modules.items() if name.startswith("cpuconv.")]
    return sum(type(value) is llvm._Deferred for module in there for value in vars(module).values())
before = standing()
llvm.imported()
from cpuconv.isa import vector
print(before > 20, standing(), vector.I32, cpuconv.isa.vector.F32(1.0))
"""
    assert processes.run("-c", code).stdout.strip() == "True 0 i32 float 0x3ff0000000000000"
