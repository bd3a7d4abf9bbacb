"""Device tables that the package ships: made by a command, packed into the wheel, taken where nothing else is known."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from autotune.machine.device import fingerprint
from autotune.wisdom.document import read
from autotune.wisdom.tiers import OLDER_KERNELS
from baselib.interpreter import python
from support.running.caches import CACHE
from support.running.processes import ROOT, SHIPPED

PROBLEM = "mb1ic8ih12oc8oh12kh3ph1"

TOLD = """
import json
import numpy as np
import cpuconv
from cpuconv.conv.session import TABLES

w = np.ones((8, 8, 3, 3), np.float32)
made = cpuconv.plan((1, 8, 12, 12), w, padding=1, threads=1)
y = made(np.ones((1, 8, 12, 12), np.float32))
other = cpuconv.plan((1, 8, 13, 12), w, padding=1, threads=1)
print(json.dumps({"algorithm": made.algorithm, "decided": made.decided_by, "other": other.decided_by,
                  "inside": float(y[0, 0, 5, 5]), "layer": made.explain().to_dict()["decided_by"],
                  "tables": str(TABLES)}))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the packages, whose tables are its own."""
    for name in SHIPPED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    (tmp_path / "cpuconv" / "wisdom").rmdir()
    return tmp_path


def run(environ: dict[str, str], package: Path, cache: str, *command: str) -> str:
    """What a process says that sees this package and a cache folder of its own, but for compiled kernels."""
    folder = package / cache
    folder.mkdir(exist_ok=True)
    if not (folder / "kernels").exists():
        (CACHE / "kernels").mkdir(parents=True, exist_ok=True)
        (folder / "kernels").symlink_to(CACHE / "kernels", target_is_directory=True)
    variables = {"PYTHONPATH": str(package), "CPUCONV_CACHE_DIR": str(folder)}
    variables["AUTOTUNE_WORKLOAD"] = "cpuconv.tuning.workload:workload"
    done = subprocess.run(
        python(*command),
        env={**environ, **variables},
        cwd=package,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table_is_made_and_taken_by_a_process_whose_store_is_empty(environ: dict[str, str], package: Path) -> None:
    autotune = ("-m", "autotune")
    run(environ, package, "tuner", *autotune, "warmup", PROBLEM, "--threads", "1")
    run(environ, package, "tuner", *autotune, "export", "--device-table")
    table = package / "cpuconv" / "wisdom" / f"{fingerprint().key}.json"
    assert read(table).count() >= 1

    told = json.loads(run(environ, package, "fresh", "-c", TOLD))
    assert Path(told["tables"]) == table.parent
    assert (told["decided"], told["layer"]) == ("shipped", "shipped")
    assert told["inside"] == pytest.approx(72.0, rel=1e-4)
    assert told["other"] in ("model", "neighbour")  # nothing is known of it
    stored = json.loads(run(environ, package, "tuner", "-c", TOLD))
    assert (stored["decided"], stored["algorithm"]) == ("store", told["algorithm"])

    assert "shipped" in run(environ, package, "fresh", *autotune, "explain", PROBLEM, "--threads", "1")

    # A release later, a file that all kernels share is another, and all kernels are the same.
    launch = package / "cpuconv" / "runtime" / "launch.py"
    launch.write_text(f"{launch.read_text()}\nEDITED = 1\n")
    assert json.loads(run(environ, package, "fresh", "-c", TOLD))["decided"] == "shipped"

    # Another release later, all kernels are others; the model agrees with everything.
    for name, old, new in (
        ("runtime/machine_code.py", "_NAMES.sub(number, content)", "_NAMES.sub(number, content + '; another')"),
        ("conv/choice/query.py", "AGREES = 1.1", "AGREES = 1e9"),
    ):
        path = package / "cpuconv" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
    older = json.loads(run(environ, package, "fresh", "-c", TOLD))
    assert (older["decided"], older["layer"], older["algorithm"]) == (OLDER_KERNELS, OLDER_KERNELS, told["algorithm"])
    assert older["inside"] == pytest.approx(72.0, rel=1e-4)
    explained = run(environ, package, "fresh", *autotune, "explain", PROBLEM, "--threads", "1")
    assert "measured with older kernels" in explained and "shipped · older kernels" in explained

    table.rename(table.with_name("0123456789abcdef.json"))  # of another device
    assert json.loads(run(environ, package, "fresh", "-c", TOLD))["decided"] == "model"


def test_tables_are_in_the_wheel(package: Path) -> None:
    pytest.importorskip("hatchling")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, package)
    table = package / "cpuconv" / "wisdom" / "0123456789abcdef.json"
    table.parent.mkdir()
    table.write_text("{}")
    command = python("-m", "hatchling", "build", "-t", "wheel", "-d", "dist")
    subprocess.run(command, cwd=package, check=True, capture_output=True)
    (wheel,) = (package / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "cpuconv/wisdom/0123456789abcdef.json" in names and "cpuconv/py.typed" in names
