"""What a kernel is made from, stamps that are kept, and what an edit of one file makes stale."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from baselib.interpreter import python
from cpuconv import origin
from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.sources import parsed, stamp, stamp_cache
from cpuconv.runtime.code.sources.stamp import dependencies, imported
from cpuconv.solvers import BY_NAME
from support.running.processes import ROOT, SHIPPED

MODULES = sorted(stamp.files())


def by_ast(module: str) -> Iterator[str]:
    known = stamp.files()
    for node in ast.walk(ast.parse(known[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                yield inner if inner in known else node.module


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_those_that_python_sees(module: str) -> None:
    assert imported(module) == set(by_ast(module)) & set(MODULES)


def test_solvers_are_made_from_their_own_files_and_what_they_share() -> None:
    for name, solver in BY_NAME.items():
        found = dependencies(solver.module)
        assert {
            solver.module,
            "cpuconv.functions.table",
            "cpuconv.kernels.binding.steps",
            "cpuconv.runtime.kernel",
            "cpuconv.isa.table",
        } <= found
        assert not found & {other.module for other in BY_NAME.values() if other.module != solver.module}, name
    assert "cpuconv.kernels.transforms.winograd" in dependencies("cpuconv.solvers.winograd")
    assert "cpuconv.kernels.transforms.winograd" not in dependencies("cpuconv.solvers.fft")
    assert dependencies("elsewhere") == set(MODULES)


def test_what_keeps_code_is_no_part_of_it() -> None:
    for name in stamp.EXCLUDED:
        runtime = ROOT / "cpuconv" / "runtime"
        assert len([*runtime.rglob(f"{name}.py"), *runtime.rglob(f"{name}/__init__.py")]) == 1
        assert not any(f"{each}.".startswith(f"cpuconv.runtime.code.{name}.") for each in MODULES)


# -- files that move

PACKAGE = {
    "runtime/kernel.py": "def kernel(x): return x\n",
    "kernels/gemm.py": "from cpuconv.runtime.kernel import kernel\nTILE = 6\n",
    "kernels/other.py": "from cpuconv.runtime.kernel import kernel\nTILE = 5\n",
    "solvers/base.py": "import cpuconv.kernels.other as other\nFLOAT = 4\n",
    "solvers/a.py": "from cpuconv.kernels.gemm import TILE\n"
    "from cpuconv.solvers import base\nSIZE = TILE * base.FLOAT\n",
    "solvers/b.py": "SIZE = 1\n",
}


CACHES: Any = (
    stamp.stamp, stamp.fault, dependencies, imported, stamp._content, stamp.known_syntaxes, stamp_cache._cached,
    stamp_cache._state,
)  # fmt: skip


@pytest.fixture
def stamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """The stamp of a module in a package of these files; another one each time."""

    def clear() -> None:
        for each in (*CACHES, stamp.files):
            each.cache_clear()

    def found(files: dict[str, str], module: str = "cpuconv.solvers.a") -> str:
        shutil.rmtree(tmp_path / "package", ignore_errors=True)
        for name, text in files.items():
            path = tmp_path / "package" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(stamp, "_ROOT", tmp_path / "package")
        monkeypatch.setattr(origin, "_AT_IMPORT", dict(origin._files(str(tmp_path / "package"))))
        clear()
        return stamp.stamp(module)

    yield found
    clear()


def with_edit(name: str, old: str, new: str) -> dict[str, str]:
    assert old in PACKAGE[name]
    return {**PACKAGE, name: PACKAGE[name].replace(old, new)}


@pytest.fixture
def kept(stamped: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What modules another process reads to stamp one of `PACKAGE`, whose files have lain there for long."""
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(stamp_cache, "_TIME_RESOLUTION", 0)
    stamped(PACKAGE)
    stamp_cache.write()  # as at a process's end
    read: list[str] = []
    content = stamp._content.__wrapped__
    monkeypatch.setattr(stamp, "_content", functools.cache(lambda each: (read.append(each), content(each))[1]))

    def reads() -> list[str]:
        read.clear()
        monkeypatch.setattr(origin, "_AT_IMPORT", dict(origin._files(str(tmp_path / "package"))))
        for each in (*CACHES, stamp.files, stamp._content):
            each.cache_clear()
        assert stamp.fault("cpuconv.solvers.a") is None
        assert stamp.stamp("cpuconv.solvers.a") == stamp._hash(map(content, dependencies("cpuconv.solvers.a")))
        stamp_cache.write()
        return [*read]

    return reads


def test_a_kept_stamp_is_not_computed_again(kept: Callable[[], list[str]], tmp_path: Path) -> None:
    assert not kept()  # the fixture has asked for it
    assert not kept()
    path = tmp_path / "package" / "solvers" / "b.py"
    before = path.stat()
    path.write_text("SIZE = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept()
    assert not kept()


def test_a_file_that_changed_since_the_import_is_a_fault(kept: Callable[[], list[str]], tmp_path: Path) -> None:
    kept()
    stamp.fault.cache_clear()
    (tmp_path / "package" / "solvers" / "a.py").write_text("SIZE = 3\n")
    assert stamp_cache.find(["cpuconv.solvers.a"]) is not None
    assert "has changed since" in str(stamp.fault("cpuconv.solvers.a"))


def test_stamps_of_files_that_changed_a_moment_ago_are_not_kept(
    kept: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamp_cache, "_TIME_RESOLUTION", 10**15)
    assert kept() and kept()


def test_stamps_are_written_some_at_once(kept: Callable[[], list[str]], tmp_path: Path) -> None:
    """And the last at the end, unless the folder is gone, which stays so."""
    path = tmp_path / "cache" / "kernels" / stamp_cache.NAME
    path.unlink()
    stamp_cache._cached.cache_clear()
    written = []
    for number in range(40):
        stamp_cache.put([f"module{number}"], "stamp", ["file"])
        written.append(len(json.loads(checked_file.read(path))["stamps"]) if path.exists() else 0)
    assert written == [0] * 7 + [8] * 8 + [16] * 16 + [32] * 9
    stamp_cache.write()
    assert len(json.loads(checked_file.read(path))["stamps"]) == 40
    stamp_cache.put(["late"], "stamp", ["file"])
    shutil.rmtree(tmp_path / "cache")
    stamp_cache.write()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", [lambda text: text[:-1], lambda text: b"", lambda text: text.replace(b"s", b"t")])
def test_damaged_stamps_are_computed_again(
    kept: Callable[[], list[str]], damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    kept()
    path = tmp_path / "cache" / "kernels" / stamp_cache.NAME
    path.write_bytes(damage(path.read_bytes()))
    assert kept()
    assert not kept()


def test_a_file_that_moves_changes_no_stamp(stamped: Callable[..., str]) -> None:
    told = stamped(PACKAGE)
    moved = {
        **PACKAGE,
        "solvers/shared/base.py": PACKAGE["solvers/base.py"],
        "kernels/deep/er/tiles.py": PACKAGE["kernels/gemm.py"],
    }
    del moved["solvers/base.py"], moved["kernels/gemm.py"]
    imports = "from cpuconv.solvers.shared import base\nfrom cpuconv.kernels.deep.er.tiles import TILE\n"
    moved["solvers/a.py"] = f"{imports}SIZE = TILE * base.FLOAT\n"
    assert stamped(moved) == told
    renamed = {**PACKAGE, "solvers/z.py": PACKAGE["solvers/a.py"]}
    assert stamped(renamed, "cpuconv.solvers.z") == told


def test_a_file_counts_for_who_reaches_it(stamped: Callable[..., str]) -> None:
    told, apart = stamped(PACKAGE), stamped(PACKAGE, "cpuconv.solvers.b")
    for name in ("runtime/kernel.py", "kernels/gemm.py", "kernels/other.py", "solvers/base.py", "solvers/a.py"):
        edited = {**PACKAGE, name: PACKAGE[name] + "EDITED = 1\n"}
        assert stamped(edited) != told
        assert stamped(edited, "cpuconv.solvers.b") == apart
    assert stamped(with_edit("solvers/b.py", "1", "2")) == told
    assert stamped(with_edit("solvers/b.py", "1", "2"), "cpuconv.solvers.b") != apart


def test_a_name_from_another_file_counts(stamped: Callable[..., str]) -> None:
    """Though the files that are reached are the same ones."""
    both = {
        **PACKAGE,
        "solvers/base.py": "import cpuconv.kernels.other as other\nimport cpuconv.kernels.gemm as gemm\n",
    }
    told = stamped(both)
    assert stamped({**both, "solvers/a.py": both["solvers/a.py"].replace("kernels.gemm", "kernels.other")}) != told
    swapped = "import cpuconv.kernels.gemm as other\nimport cpuconv.kernels.other as gemm\n"
    assert stamped({**both, "solvers/base.py": swapped}) != told


def test_stamps_of_several_modules_know_no_order(stamped: Callable[..., str]) -> None:
    stamped(PACKAGE)
    a, b = "cpuconv.solvers.a", "cpuconv.solvers.b"
    assert stamp.stamp(a, b) == stamp.stamp(b, a) not in (stamp.stamp(a), stamp.stamp(b))


# -- what an edit makes stale

APPLIED = """
from cpuconv.kernels.transforms.linear import apply
def _applied(vec, matrices, values):
    for matrix in matrices:
        values = apply(vec, matrix, values)
    return values
"""

TOLD = """
import json, sys
import numpy as np
import cpuconv
from autotune.machine.device import fingerprint
from autotune.store.store import Row, Store
from cpuconv.conv.choice import tuned
from cpuconv.conv.recipe import Candidate
from cpuconv.runtime.code.cache import Statistics
from cpuconv.conv.choice.model import Limits, by_model
from cpuconv.tuning.workload import workload

problem = cpuconv.ConvProblem(1, 16, 12, 12, 16, 3, 3, pads=(1, 1, 1, 1))
store = Store()
for solver in ("direct", "winograd", "im2col"):
    name = str(by_model(problem, Limits(), f"{solver}("))
    if sys.argv[1] == "put":
        sources, kernels = workload.sources_of(name), workload.kernels_hash(problem.key, name)
        row = Row(fingerprint().key, problem.key, name, sources, "ok", median=1e-3, score=1e-3, kernels=kernels)
        store.put([row])
    if sys.argv[1] != "rows":
        x, w = np.ones(problem.in_shape, np.float32), np.ones(problem.weight_shape, np.float32)
        cpuconv.plan(x.shape, w, padding=1, threads=1, algorithm=name)(x)
current = [each.row.candidate for each in tuned.rows(problem) if each.current]
found = {Candidate.parse(name).solver.name for name in current}
print(json.dumps({"found": sorted(found), "compiled": Statistics.compiled}))
"""


def test_rows_are_stale_whose_kernels_an_edit_changes(environ: dict[str, str], tmp_path: Path) -> None:
    """A comment, another name, a moved function and another cost leave all rows; a changed kernel its own alone."""
    for package in SHIPPED:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    variables = {**environ, "PYTHONPATH": str(tmp_path), "CPUCONV_CACHE_DIR": str(tmp_path / "cache")}
    kernels = Path(os.environ["CPUCONV_CACHE_DIR"]) / "kernels"
    kernels.mkdir(exist_ok=True)  # the first test of a session finds none
    unfinished = shutil.ignore_patterns("*.lock", "*.part")  # other tests compile meanwhile
    shutil.copytree(kernels, tmp_path / "cache" / "kernels", ignore=unfinished)

    def tell(what: str) -> dict:
        command = python("-c", TOLD, what)
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def edit(path: str, text: str) -> None:
        with (tmp_path / "cpuconv" / path).open("a") as file:
            file.write(f"\n{text}\n")

    def change(path: str, pattern: str, new: str) -> None:
        file = tmp_path / "cpuconv" / path
        text, count = re.subn(pattern, new, file.read_text())
        assert count
        file.write_text(text)

    everything = ["direct", "im2col", "winograd"]
    transforms = "kernels/transforms/winograd.py"
    assert tell("put")["found"] == everything
    assert tell("ask") == {"found": everything, "compiled": 0}
    edit("runtime/kernel.py", "# edited")
    edit("solvers/direct.py", '"""Edited."""')
    assert tell("ask") == {"found": everything, "compiled": 0}
    edit("solvers/direct.py", "_cost = cost\ndef cost(*given):\n    return _cost(*given)")
    edit("runtime/launch.py", f"EDITED = {tmp_path.name!r}")
    assert tell("ask") == {"found": everything, "compiled": 1}  # what launches kernels
    change(transforms, r"\bline\b", "row")  # a parameter's name is a name in the IR, too
    edit(transforms.replace("winograd", "moved"), APPLIED)
    change(transforms, r"def _applied\(", "def _forgotten(")
    change(
        transforms,
        r"\nfrom cpuconv.kernels.transforms.linear ",
        r"\nfrom cpuconv.kernels.transforms.moved import _applied\g<0>",
    )
    assert tell("ask") == {"found": everything, "compiled": 3}  # the transforms: forward, back, of weights
    change(transforms, r"j \+ size - 2", "j + size - 1")  # the distance of a prefetch
    assert tell("ask") == {"found": ["direct", "im2col"], "compiled": 3}
    edit("runtime/kernel.py", "EDITED = 1")
    assert tell("rows")["found"] == ["direct", "im2col"]


@pytest.fixture
def without_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Makes of the package an install of byte code alone, whose own file knows its sources; the argument is what its
    RECORD calls one of them, left out: what it is."""
    sources = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in stamp.files().values()}
    monkeypatch.setattr(parsed, "SHIPPED", tmp_path / "sources")
    parsed.ship(sources.values(), parsed.SHIPPED)
    hashes = {name: parsed.recorded_key(text) for name, text in sources.items()}

    def install(**others: str) -> None:
        monkeypatch.setattr(origin, "_AT_IMPORT", {})
        told = {**hashes, "cpuconv/cli/main.py": "sha256=another", **others}
        release = "\n".join(["1.0", *(f"{name},{digest},1" for name, digest in told.items())])
        monkeypatch.setattr(origin, "RELEASE", release)
        monkeypatch.setattr(origin, "release", lambda: release)
        monkeypatch.setattr(stamp, "files", dict)
        for each in CACHES:
            each.cache_clear()

    yield install
    monkeypatch.undo()
    for each in CACHES:
        each.cache_clear()


def test_byte_code_alone_has_the_stamps_of_its_sources(without_sources: Callable[..., None]) -> None:
    names = [solver.module for solver in BY_NAME.values()]
    stamps = [stamp.stamp(name) for name in names]
    without_sources()
    assert [stamp.stamp(name) for name in names] == stamps and not any(stamp.fault(name) for name in names)
    without_sources(**{"cpuconv/solvers/fft.py": "sha256=unknown"})  # then the release tells
    assert stamp.known_syntaxes() == {} and not {stamp.stamp(name) for name in names} & {*stamps}
