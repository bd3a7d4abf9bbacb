"""What a process imports: only what it uses."""

from __future__ import annotations

import json

import pytest

import autotune
import cpuconv
from support.running import processes

ABOUT_NETWORKS = ("cpuconv.graph", "cpuconv.network", "cpuconv.integrations")
ABOUT_TUNING = ("cpuconv.tuning", "autotune.tuning", "autotune.cli", "autotune.report", "rich", "tabulate")
ONNX = ("onnx", "google.protobuf")
OF_SOME_STARTS = ("numpy.polynomial", "platformdirs", "random", "secrets", "statistics", "subprocess", "tempfile")
WHAT_LOADING_LACKS = tuple(
    f"cpuconv.{name}" for name in ("graph.passes", "network.precision", "quantizing", "reading.onnx_reader")
)

CONV2D = "import numpy as np; cpuconv.conv2d(np.ones((1, 4, 9, 9), np.float32), np.ones((8, 4, 3, 3), np.float32))"


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("", (*ABOUT_NETWORKS, *ABOUT_TUNING, *ONNX, *OF_SOME_STARTS, "filelock")),
        (CONV2D, (*ABOUT_NETWORKS, *ABOUT_TUNING, *ONNX)),
        ("cpuconv.compile, cpuconv.load", (*ABOUT_TUNING, *ONNX, *OF_SOME_STARTS, *WHAT_LOADING_LACKS)),
        ("import autotune", (*ABOUT_NETWORKS, *ABOUT_TUNING, *ONNX)),
    ],
    ids=("import", "conv2d", "compile", "autotune"),
)
def test_nothing_is_imported_that_is_not_used(code: str, unwanted: tuple[str, ...]) -> None:
    begun = "import json, numpy, sys; before = {*sys.modules}"
    told = "print(json.dumps(sorted({*sys.modules} - before)))"
    imported = json.loads(processes.run("-c", f"{begun}; import cpuconv; {code}\n{told}").stdout)
    assert "cpuconv.conv.plan" in imported
    assert [name for name in imported if any(f"{name}.".startswith(f"{other}.") for other in unwanted)] == []


@pytest.mark.parametrize("package", [autotune, cpuconv], ids=lambda package: package.__name__)
def test_what_a_package_exports_is_there(package) -> None:
    for name in package.__all__:
        assert getattr(package, name) is getattr(package, name)
        assert name in vars(package)  # found once
    with pytest.raises(AttributeError, match=f"{package.__name__}.*'later'"):
        _ = package.later


def test_names_are_completed_before_they_are_imported() -> None:
    assert set(cpuconv.__all__) <= set(dir(cpuconv))
