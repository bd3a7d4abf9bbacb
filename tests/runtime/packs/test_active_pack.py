"""Where the cache is empty, kernels come from the package's pack; nothing is compiled, and damage is no error."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.packs import active_pack, pack_file, packing
from cpuconv.runtime.code.packs.stripped import SYMBOL, stripped
from cpuconv.runtime.target import target
from support.running import processes, shipped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="packs are made for Linux")
PROGRAM = """
import json, sys, warnings
caught = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *_: caught.append(f"{category.__name__}: {message}")
import numpy as np
import cpuconv
exec(sys.argv[2])
from pathlib import Path
from cpuconv.runtime.code.cache import Statistics, recording_names
from cpuconv.runtime.code.packs import active_pack
active_pack.FOLDER = Path(sys.argv[1])
x, w = np.ones((1, 8, 9, 9), np.float32), np.ones((8, 8, 1, 1), np.float32)
with recording_names() as names:
    y = cpuconv.conv2d(x, w, threads=1)
assert (y == 8).all()
counts = {name: getattr(Statistics, name) for name in ("compiled", "loaded", "packed")}
print(json.dumps({**counts, "why": active_pack.current().why, "names": sorted(names), "warnings": caught}))
"""


def told(packs: Path, cache: Path, use: str = "1") -> dict[str, Any]:
    done = processes.run("-c", PROGRAM, str(packs), shipped.code(), CPUCONV_CACHE_DIR=str(cache), CPUCONV_PACKS=use)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """The kernels of the program, compiled here."""
    folder = tmp_path_factory.mktemp("compiled")
    first = told(folder / "none", folder)
    files = {path.stem: path for path in folder.glob("kernels/*/*.o")}
    assert first["compiled"] == len(files) and first["packed"] == 0 and "there is no file" in first["why"]
    kernels = {}
    for name in first["names"]:
        kernel = KernelBody.of(checked_file.read(files[name]))
        kernels[name] = kernel._replace(symbol=SYMBOL, code=stripped(kernel.code, kernel.symbol)).to_bytes()
    shutil.rmtree(folder)
    return kernels, first["compiled"]


@pytest.fixture
def packs(tmp_path: Path, compiled: tuple[dict[str, bytes], int]) -> Path:
    """A folder with a pack of them, for the class that serves this CPU best."""
    found = active_pack.fitting()
    if not found:
        pytest.skip(f"{target()[1]} is of no class")
    folder = tmp_path / "packs"
    folder.mkdir()
    packing.write(folder / f"{found[0].machine}{active_pack.SUFFIX}", {found[0].name: compiled[0], "another": {}})
    return folder


def test_nothing_is_compiled(packs: Path, tmp_path: Path, compiled: tuple[dict[str, bytes], int]) -> None:
    first = told(packs, tmp_path / "cache")
    assert (first["compiled"], first["loaded"], first["packed"]) == (0, 0, compiled[1])
    assert first["why"] == "" and first["warnings"] == []
    assert not list((tmp_path / "cache").glob("kernels/*/*.o"))


def test_the_users_cache_comes_first(packs: Path, tmp_path: Path, compiled: tuple[dict[str, bytes], int]) -> None:
    first = told(packs, tmp_path / "cache", use="0")
    assert (first["compiled"], first["packed"]) == (compiled[1], 0) and "CPUCONV_PACKS" in first["why"]
    second = told(packs, tmp_path / "cache")
    assert (second["compiled"], second["loaded"], second["packed"]) == (0, compiled[1], 0)


def test_what_a_pack_lacks_is_compiled(packs: Path, tmp_path: Path, compiled: tuple[dict[str, bytes], int]) -> None:
    (path,) = packs.iterdir()
    some = dict(list(compiled[0].items())[:2])
    packing.write(path, {pack_file.of_file(path).parts[-1]: some})
    first = told(packs, tmp_path / "cache")
    assert (first["compiled"], first["packed"]) == (compiled[1] - 2, 2) and first["warnings"] == []


@pytest.mark.parametrize("place", [-20, 60])
def test_a_damaged_pack_is_told_once_and_left_out(
    packs: Path, tmp_path: Path, compiled: tuple[dict[str, bytes], int], place: int
) -> None:
    (path,) = packs.iterdir()
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    first = told(packs, tmp_path / "cache")
    (warning,) = first["warnings"]
    assert "CpuconvWarning" in warning and path.name in warning and "damaged" in warning
    assert first["compiled"] == compiled[1] and first["packed"] == 0


def test_code_that_is_no_object_file_is_compiled(
    packs: Path, tmp_path: Path, compiled: tuple[dict[str, bytes], int]
) -> None:
    (path,) = packs.iterdir()
    packing.write(
        path, {pack_file.of_file(path).parts[-1]: {name: kernel[:-300] for name, kernel in compiled[0].items()}}
    )
    first = told(packs, tmp_path / "cache")
    assert first["compiled"] == compiled[1] and first["packed"] == 0


def test_a_pack_of_other_classes_serves_nobody(
    packs: Path, tmp_path: Path, compiled: tuple[dict[str, bytes], int]
) -> None:
    (path,) = packs.iterdir()
    packing.write(path, {"another": compiled[0]})
    first = told(packs, tmp_path / "cache")
    assert first["compiled"] == compiled[1] and first["warnings"] == []
    assert "has kernels for another, and none for" in first["why"]


ACCOUNT = (
    PROGRAM
    + """
from cpuconv.runtime.code.packs.account import account
print(json.dumps(account()))
"""
)


def accounted(packs: Path, cache: Path, use: str = "1") -> dict[str, str]:
    done = processes.run("-c", ACCOUNT, str(packs), shipped.code(), CPUCONV_CACHE_DIR=str(cache), CPUCONV_PACKS=use)
    return json.loads(done.stdout.splitlines()[-1])


def test_what_was_compiled_is_accounted_for(
    packs: Path, tmp_path: Path, compiled: tuple[dict[str, bytes], int]
) -> None:
    (path,) = packs.iterdir()
    first = accounted(packs, tmp_path / "served")
    assert first["kernel_pack"] == f"{pack_file.of_file(path).parts[-1]}, {len(compiled[0])} kernels in {path}"
    assert first["kernels_compiled"] == "none are cached"
    without = accounted(packs, tmp_path / "cache", use="0")
    assert without["kernel_pack"] == "none: CPUCONV_PACKS is 0"
    assert without["kernels_compiled"].startswith(f"{compiled[1]}: {compiled[1]} as no pack fits (")
    with_all = accounted(packs, tmp_path / "cache")
    assert with_all["kernels_compiled"] == f"{compiled[1]}: {compiled[1]} before the pack was used"
    packing.write(path, {pack_file.of_file(path).parts[-1]: dict(list(compiled[0].items())[:1])})
    less = accounted(packs, tmp_path / "cache")["kernels_compiled"]
    assert f"{compiled[1] - 1} as the pack lacks them (" in less and "; 1 before the pack was used" in less


def test_names_are_noted_by_whoever_asks_and_around_it() -> None:
    program = """
wide = np.ones((8, 8, 3, 3), np.float32)
with recording_names() as outer:
    with recording_names() as inner:
        cpuconv.conv2d(x, wide, threads=1)
    cpuconv.conv2d(x, wide[:5], threads=1)
with recording_names() as later:
    pass
print(json.dumps([len(inner), inner < outer, later < inner]))
"""
    code = PROGRAM.replace('"names": sorted(names), ', "") + program
    done = processes.run("-c", code, "none", shipped.code(), CPUCONV_PACKS="0")
    count, *nested = json.loads(done.stdout.splitlines()[-1])
    assert count >= 3 and nested == [True, True]
