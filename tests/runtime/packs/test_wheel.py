"""A wheel as a user has it: in a bare environment, without onnx, scipy, Numba, a compiler, or a home folder, a
convolution and a network run by the kernels that the wheel brought."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from baselib.interpreter import python
from bench.packs import __main__ as building
from cpuconv.runtime.code.packs import active_pack
from cpuconv.runtime.target import target
from support.models import conv, save
from support.running.processes import PATH, ROOT, SHIPPED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="packs are made for Linux"),
    pytest.mark.skipif(bool(os.environ.get("CPUCONV_LAUNCHER")), reason="an emulated compiler takes minutes"),
]
LINE = 'mb1ic8ih12oc16oh12kh3ph1n"small"\n'
PACKS = "cpuconv/runtime/code/packs"  # the room, not the files of a checkout that lie in cpuconv/packs
LINKED = ("numpy", "numpy.libs", "ml_dtypes", "platformdirs")
DESCRIBED = (*LINKED, "numba", "llvmlite")  # by their metadata; the compilers themselves are left out
PROGRAM = """
import importlib.util, json, sys, warnings
caught = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *_: caught.append(f"{category.__name__}: {message}")
import numpy as np
import cpuconv
from cpuconv.runtime.code.cache import Statistics
from cpuconv.runtime.code.packs import active_pack
absent = [name for name in ("onnx", "scipy", "numba", "llvmlite") if importlib.util.find_spec(name) is None]
assert cpuconv.__file__.startswith(sys.prefix), cpuconv.__file__
x, w = np.ones((1, 8, 12, 12), np.float32), np.ones((16, 8, 3, 3), np.float32)
y = cpuconv.conv2d(x, w, padding=1, threads=1, accuracy="exact")
assert (y[:, :, 1:-1, 1:-1] == 72).all() and (y[:, :, 0, 0] == 32).all()
z = cpuconv.compile(sys.argv[1], threads=1).run({"x": np.load(sys.argv[2])})
np.testing.assert_allclose(z["y"], np.load(sys.argv[3]), rtol=1e-5, atol=1e-5)
counts = {name: getattr(Statistics, name) for name in ("compiled", "loaded", "packed")}
print(json.dumps({**counts, "class": active_pack.current().cpu, "absent": absent, "warnings": caught}))
"""


@pytest.fixture(scope="module")
def cpu() -> str:
    """The class of CPUs that serves this one best."""
    found = active_pack.fitting()
    if not found:
        pytest.skip(f"{target()[1]} is of no class")
    return found[0].name


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network of a convolution, pooling and a product."""
    pytest.importorskip("onnx")
    from onnx import helper

    folder = tmp_path_factory.mktemp("network")
    nodes = [
        conv(y="h", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "m"], ["y"], transB=1),
    ]
    save(folder / "net.onnx", nodes, {"x": (1, 8, 12, 12)}, {"w": (16, 8, 3, 3), "m": (10, 16)})
    return folder


def options(folder: Path, cpu: str, output: Path) -> list[str]:
    (folder / "lines.txt").write_text(LINE)
    chosen = {"classes": cpu, "lines": folder / "lines.txt", "types": "f32", "closed": "", "output": output}
    return [f"--{name}={value}" for name, value in {**chosen, "shapes": 0, "drawn": 0}.items()]


def build(folder: Path, cpu: str, output: Path, *more: str) -> None:
    """Packs of a small set, in a process as `make wheel` starts it, whose cache is empty."""
    environ = {**os.environ, "PYTHONPATH": PATH}
    command = python("-m", building.__name__.removesuffix(".__main__"), *options(folder, cpu, output), *more)
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory, cpu: str, network: Path) -> Path:
    """What such a process has made."""
    folder = tmp_path_factory.mktemp("first")
    build(folder, cpu, folder / "packs", f"--networks={network}")
    return folder / "packs"


def linked(folder: Path) -> None:
    """Put the packages that are needed to run, as they are installed here, into a folder."""
    places = [
        Path(each) for each in {*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    ]
    for place in places:
        named = [place / name for name in LINKED]
        described = [found for name in DESCRIBED for found in place.glob(f"{name}-*.dist-info")]
        for found in (*named, *described):
            if found.exists() and not (folder / found.name).exists():
                (folder / found.name).symlink_to(found)


def test_a_wheel_in_a_bare_environment_compiles_nothing(tmp_path: Path, cpu: str, network: Path, packs: Path) -> None:
    pytest.importorskip("hatchling")
    import cpuconv

    tree = tmp_path / "tree"
    for name in SHIPPED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "packs"))
    shutil.copytree(ROOT / PACKS, tree / PACKS)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(packs, tree / "cpuconv" / "packs")
    subprocess.run(python("-m", "hatchling", "build", "-t", "wheel"), cwd=tree, check=True, capture_output=True)
    (wheel,) = (tree / "dist").glob("*.whl")

    venv.create(bare := tmp_path / "bare", symlinks=True)
    (packages,) = bare.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    linked(packages)
    x = np.random.default_rng(1).standard_normal((1, 8, 12, 12), np.float32)
    expected = cpuconv.compile(network / "net.onnx", threads=1).run({"x": x})["y"]
    files = [str(network / "net.onnx"), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    for file, array in zip(files[1:], (x, expected), strict=True):
        np.save(file, array)
    command = [str(bare / "bin" / "python"), "-c", PROGRAM, *files]
    done = subprocess.run(command, env={"HOME": "/proc/none"}, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["absent"] == ["onnx", "scipy", "numba", "llvmlite"]
    assert (told["compiled"], told["loaded"], told["class"], told["warnings"]) == (0, 0, cpu, [])
    assert told["packed"] >= 8


def test_a_build_that_runs_what_it_compiles_is_equal_byte_for_byte(
    tmp_path: Path, cpu: str, network: Path, packs: Path
) -> None:
    build(tmp_path, cpu, tmp_path / "packs", f"--networks={network}", "--run")
    again = {path.name: path.read_bytes() for path in (tmp_path / "packs").iterdir()}
    assert again == {path.name: path.read_bytes() for path in packs.iterdir()} and len(again) == 2
