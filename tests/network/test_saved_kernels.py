"""A saved model with its machine code: where it is trusted and fits nothing is compiled, elsewhere it is ignored."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cpuconv.network.saved import kernels
from support.models import conv, save
from support.running import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stripped objects are ELF files")
BEFORE = """
import json, sys
import numpy as np
import cpuconv
from cpuconv.runtime.code.cache import Statistics
x = {"x": np.random.default_rng(1).standard_normal((1, 8, 12, 12), np.float32)}
"""
SAVE = """
model = cpuconv.compile(sys.argv[1], threads=1)
np.save(sys.argv[4], model.run(x)["y"])
model.save(sys.argv[2])
model.save(sys.argv[3], kernels=True)
"""
LOAD = """
y = cpuconv.load(sys.argv[1], trust_kernels=sys.argv[2] == "trust", threads=1).run(x)["y"]
assert (y == np.load(sys.argv[3])).all()
print(json.dumps({"compiled": Statistics.compiled, "packed": Statistics.packed}))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model saved as "plain" and "whole", and its output."""
    pytest.importorskip("onnx")
    from onnx import helper

    folder = tmp_path_factory.mktemp("saved")
    nodes = [conv(y="h", pads=[1, 1, 1, 1]), helper.make_node("Relu", ["h"], ["y"])]
    path = save(folder / "net.onnx", nodes, {"x": (1, 8, 12, 12)}, {"w": (16, 8, 3, 3)})
    files = [str(folder / name) for name in ("plain", "whole", "y.npy")]
    processes.run("-c", BEFORE + SAVE, str(path), *files)
    return folder


def loaded(saved: Path, name: str, cache: Path, trust: str = "trust") -> dict[str, Any]:
    """What a process says that loads the model with an empty cache and without packs."""
    files = str(saved / name), trust, str(saved / "y.npy")
    done = processes.run("-c", BEFORE + LOAD, *files, CPUCONV_CACHE_DIR=str(cache), CPUCONV_PACKS="0")
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_is_compiled_where_the_file_is_trusted(saved: Path, tmp_path: Path) -> None:
    told = loaded(saved, "whole", tmp_path)
    assert told["compiled"] == 0 and told["packed"] >= 5


@pytest.mark.parametrize(("name", "trust"), [("whole", ""), ("plain", "trust")])
def test_without_trust_or_kernels_all_are_compiled(saved: Path, tmp_path: Path, name: str, trust: str) -> None:
    told = loaded(saved, name, tmp_path, trust)
    assert told["compiled"] >= 5 and told["packed"] == 0


def test_damaged_kernels_are_compiled(saved: Path, tmp_path: Path) -> None:
    content = bytearray((saved / "whole").read_bytes())
    place = content.rindex(b"\x89cpupack")
    content[place + 200] ^= 1
    (saved / "damaged").write_bytes(content)
    told = loaded(saved, "damaged", tmp_path)
    assert told["compiled"] >= 5 and told["packed"] == 0


def test_kernels_fit_a_cpu_that_has_their_features() -> None:
    here = kernels.here()
    assert kernels.fits(here)
    if not here["features"]:
        pytest.skip("this CPU is known by its name alone")
    assert kernels.fits({**here, "features": here["features"][1:]})
    assert not kernels.fits({**here, "features": [*here["features"], "a-feature-of-another"]})
    assert not kernels.fits({**here, "features": []})
    assert not kernels.fits({**here, "triple": "another"}) and not kernels.fits({**here, "isa": "another"})
