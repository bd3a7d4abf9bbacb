"""Kernels on disk belong to the code that was imported: without source files, and where an upgrade replaces them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from baselib.interpreter import python
from cpuconv import origin
from support.running.processes import ROOT, SHIPPED

KERNEL = "cpuconv/kernels/streams/fingerprint.py"
PROGRAM = """
import json, os, sys, warnings
caught = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *_: caught.append(f"{category.__name__}: {message}")
import numpy as np
import cpuconv
from cpuconv.conv import session
from cpuconv.conv.recipe import current_sources
from cpuconv.runtime.code.cache import Statistics
assert cpuconv.__file__.startswith(sys.argv[1]), cpuconv.__file__
if sys.argv[2] == "upgraded":
    print("imported", flush=True)
    sys.stdin.readline()
session.current.fingerprint(np.ones((4, 4, 3, 3), np.float32), 1)
sources = sorted(current_sources())
ours = [each for each in caught if each.startswith("CpuconvWarning")]
print(json.dumps({"sources": sources, "warnings": ours, "compiled": Statistics.compiled, "loaded": Statistics.loaded}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    command = python("-m", "hatchling", "build", "-t", "wheel", "-d", "dist")
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (made,) = (folder / "dist").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def releases(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the wheel holds, with its sources and with bytecode in their place."""
    folder = tmp_path_factory.mktemp("releases")
    for name in ("source", "bytecode"):
        zipfile.ZipFile(wheel).extractall(folder / name)
    compiled_in_place(folder / "bytecode")
    return {name: folder / name for name in ("source", "bytecode")}


def compiled_in_place(folder: Path) -> None:
    """Put bytecode in the place of every source in a folder."""
    subprocess.run(python("-m", "compileall", "-b", "-q", str(folder)), check=True)
    for path in folder.rglob("*.py"):
        path.unlink()


class Site:
    """A folder or archive that packages are imported from, and a cache folder."""

    def __init__(self, folder: Path, releases: dict[str, Path]) -> None:
        self.folder, self.path, self.releases = folder, folder / "site", releases

    def install(self, *, edited: bool = False, kind: str = "source", record: bool = True) -> None:
        """Put the release there, in place of what was: a file of a kernel may differ, as in another one."""
        new = self.folder / "new"
        shutil.copytree(self.releases["bytecode" if kind.startswith("bytecode") else "source"], new)
        (information,) = new.glob("*.dist-info")
        if edited:
            shutil.copy(self.releases["source"] / KERNEL, new / KERNEL)
            with (new / KERNEL).open("a") as file:
                file.write("EDITED = 1\n")
            text = (information / "RECORD").read_text().splitlines()
            text = [f"{KERNEL},sha256=edited,1" if line.startswith(KERNEL) else line for line in text]
            (information / "RECORD").write_text("\n".join(text))
        if not record:
            shutil.rmtree(information)
        if edited and kind.startswith("bytecode"):
            compiled_in_place((new / KERNEL).parent)
        if kind.endswith("archive"):
            self.path = self.folder / "site.zip"
            shutil.make_archive(str(self.folder / "site"), "zip", new)
            shutil.rmtree(new)
            return
        if self.path.exists():  # as pip does: away with the old one, then the new one in its place
            self.path.rename(self.folder / "old")
            shutil.rmtree(self.folder / "old")
        new.rename(self.path)

    def start(self, what: str = "") -> subprocess.Popen[str]:
        """A process that imports the package from here."""
        variables = {**os.environ, "PYTHONPATH": str(self.path), "CPUCONV_CACHE_DIR": str(self.folder / "cache")}
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
        pipe = subprocess.PIPE
        return subprocess.Popen(
            python("-c", PROGRAM, str(self.path), what),
            env=variables,
            cwd=self.folder,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def tell(self, process: subprocess.Popen[str] | None = None, stdin: str = "") -> dict[str, Any]:
        """What the process said, a new one by default."""
        process = process or self.start()
        out, err = process.communicate(stdin)
        assert process.returncode == 0, err
        return json.loads(out.splitlines()[-1])


@pytest.fixture
def site(tmp_path: Path, releases: dict[str, Path]) -> Site:
    return Site(tmp_path, releases)


WITHOUT_SOURCES = ["bytecode", "bytecode archive", "archive"]


@pytest.mark.parametrize("kind", ["source", *WITHOUT_SOURCES])
def test_kernels_of_another_release_are_not_loaded(site: Site, kind: str) -> None:
    site.install(kind=kind)
    first, second = site.tell(), site.tell()
    assert first["compiled"] >= 2 and second["compiled"] == 0 and second["loaded"] == first["compiled"]
    assert first["warnings"] == second["warnings"] == [] and first["sources"] == second["sources"]
    site.install(kind=kind, edited=True)
    third = site.tell()
    assert third["compiled"] >= 1 and third["warnings"] == []
    if kind != "source":  # any of its files may have changed
        assert third["loaded"] == 0 and not set(third["sources"]) & set(first["sources"])
    assert site.tell()["compiled"] == 0


@pytest.mark.parametrize("kind", WITHOUT_SOURCES)
def test_without_a_record_nothing_is_kept(site: Site, kind: str) -> None:
    """Not by the RECORD of another copy either, which the environment of the tests has."""
    site.install(kind=kind, record=False)
    told = [site.tell() for _ in range(2)]
    for each in told:
        assert each["compiled"] >= 2 and each["loaded"] == 0
        (warning,) = each["warnings"]
        assert "not cached on disk" in warning and "no RECORD" in warning
    assert not set(told[0]["sources"]) & set(told[1]["sources"])
    assert not list(site.folder.glob("cache/kernels/*/*.o"))


@pytest.mark.parametrize("kind", ["source", "bytecode"])
def test_an_upgrade_of_a_running_process_keeps_old_code_apart(site: Site, kind: str) -> None:
    site.install(kind=kind)
    process = site.start("upgraded")
    assert process.stdout.readline() == "imported\n"
    site.install(kind=kind, edited=True)
    old = site.tell(process, "\n")
    assert old["compiled"] >= 2 and old["loaded"] == 0
    (warning,) = old["warnings"]
    assert "not cached on disk" in warning and "has changed since this process imported it" in warning
    new = site.tell()
    assert new["compiled"] == old["compiled"] and new["loaded"] == 0 and new["warnings"] == []
    assert not set(new["sources"]) & set(old["sources"])


# -- what tells that a file is another one


def test_a_file_that_is_replaced_is_noticed_whatever_its_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runtime" / "kernel.py"
    path.parent.mkdir()
    path.write_text("SIZE = 1\n")
    monkeypatch.setattr(origin, "_AT_IMPORT", dict(origin._files(str(tmp_path))))
    assert origin.is_unchanged([path])
    time = path.stat().st_mtime_ns
    new = tmp_path / "new"
    new.write_text("SIZE = 2\n")
    os.utime(new, ns=(time, time))
    new.replace(path)
    assert not origin.is_unchanged([path])
    path.unlink()
    assert not origin.is_unchanged([path])
    assert not origin.is_unchanged([tmp_path / "runtime" / "added.py"])


def test_files_are_noted_before_any_of_them_is_imported() -> None:
    code = "import sys\nimport cpuconv\nprint([each for each in sys.modules if each.startswith('cpuconv.')][:1])"
    done = subprocess.run(python("-c", code), cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([origin.__name__])


@pytest.mark.parametrize(
    "record",
    ["", "cpuconv/__init__.py,sha256=abc,12\n", "cpuconv/runtime/kernel.py,,\n", "_cpuconv.pth,sha256=abc,12\n"],
)
def test_a_record_without_hashes_of_kernels_tells_nothing(monkeypatch: pytest.MonkeyPatch, record: str) -> None:
    class Distribution:
        version = "1"

        def read_text(self, name: str) -> str:
            return record

        def locate_file(self, name: str) -> Path:
            return origin.ROOT

    from importlib import metadata

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    assert origin.release() is None
    record += "cpuconv/runtime/kernel.py,sha256=abc,12\n"
    assert origin.release() == f"1\n{record}"
    monkeypatch.setattr(Distribution, "locate_file", lambda self, name: origin.ROOT.parent / "elsewhere")
    assert origin.release() is None
