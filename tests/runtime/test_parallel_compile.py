"""Kernels that are nowhere on disk are compiled by several processes, each by one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from baselib.interpreter import python
from cpuconv.isa.table import current
from cpuconv.kernels.streams.fingerprint import FingerprintTile, fingerprint
from cpuconv.runtime.code import cache, parallel_compile
from cpuconv.runtime.code.cache import NotCompiled, without_compiling

RUN = """
import time
from cpuconv.isa.table import current
from cpuconv.kernels.streams.fingerprint import FingerprintTile, fingerprint, sum_blocks
from cpuconv.runtime.code import kernel_files, parallel_compile
from cpuconv.runtime.code.cache import Statistics

parallel_compile.MIN_KERNELS_PER_HELPER = 1
tile = FingerprintTile(current().lanes)
with parallel_compile.early_helpers(lambda: [(fingerprint, tile)]):
    helpers = len(parallel_compile._early.get())
    while helpers and not any(kernel_files.folder().path.glob("*-fingerprint-*.o")):
        time.sleep(0.02)
    parallel_compile.compile_in_parallel([(fingerprint, tile), (sum_blocks, tile)])
for kernel in (fingerprint, sum_blocks):
    kernel.entry(tile)
print(helpers, Statistics.compiled, Statistics.loaded)
"""


def run(folder: Path, compilers: str) -> list[int]:
    """Helpers that were started early, kernels compiled by the process itself, and kernels that it found."""
    environ = {**os.environ, "CPUCONV_CACHE_DIR": str(folder), parallel_compile.VARIABLE: compilers}
    done = subprocess.run(python("-c", RUN), env=environ, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_a_helper_compiles_what_is_expected(tmp_path: Path) -> None:
    helpers, compiled, loaded = run(tmp_path, "2")
    assert helpers == 1 and compiled <= 1 and compiled + loaded == 2, "the other one is compiled by either"
    assert run(tmp_path, "2") == [0, 0, 2], "nothing is missing: nobody helps"


def test_what_would_be_compiled_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = cache.Statistics.compiled
    with without_compiling(), pytest.raises(NotCompiled) as raised:
        cache.load_or_compile("nobody", "cpuconv.kernels.streams.fingerprint", "x", lambda: pytest.fail("compiled"))
    assert raised.value.file.name.startswith("nobody-") and not raised.value.file.is_begun()
    assert cache.Statistics.compiled == asked
    tile = FingerprintTile(current().lanes)
    code = fingerprint.entry(tile)
    with without_compiling():
        assert fingerprint.entry(tile) is code


@pytest.mark.parametrize("processes, helpers", [("1", 0), ("2", 1)])
def test_so_many_helpers_are_started_as_are_stated(
    monkeypatch: pytest.MonkeyPatch, processes: str, helpers: int
) -> None:
    """Early, as nothing is on disk, and for many missing kernels."""
    started: list[int] = []
    compiled: list[int] = []

    class Helper(SimpleNamespace):
        def __init__(self, number: int) -> None:
            started.append(number)

        give = finish = end = lambda self, *_: None

    class Missing(SimpleNamespace):
        module = name = "nobody"

        def entry(self, tile: int) -> None:
            compiled.append(tile)

    file = SimpleNamespace(is_begun=lambda: False)
    missing = [((Missing(), tile), file) for tile in range(2 * parallel_compile.MIN_KERNELS_PER_HELPER)]
    monkeypatch.setattr(parallel_compile, "_Helper", Helper)
    monkeypatch.setattr(parallel_compile, "_missing", lambda wanted: missing)
    monkeypatch.setattr(parallel_compile, "is_cache_empty", lambda: True)
    monkeypatch.setattr(parallel_compile, "_can_start_helpers", lambda: True)
    monkeypatch.setattr(parallel_compile, "_send", lambda helpers, wanted: None)
    monkeypatch.setenv(parallel_compile.VARIABLE, processes)
    with parallel_compile.early_helpers():
        assert len(started) == helpers
    parallel_compile.compile_in_parallel([])
    assert len(started) == 2 * helpers
    assert compiled == ([*range(len(missing))] if helpers else [])  # else each at its first use


def test_helpers_take_idle_cores_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(parallel_compile.VARIABLE)
    monkeypatch.setattr(parallel_compile, "LOAD", load := tmp_path / "loadavg")
    monkeypatch.setattr(os, "getloadavg", lambda: (13.9, 0.0, 0.0), raising=False)
    monkeypatch.setattr(parallel_compile, "allowed_cores", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    found = []
    for running in (1, 14, 31):  # this process counted
        load.write_text(f"13.90 5.00 1.00 {running}/900 4711\n")
        found.append(parallel_compile._processes())
    assert found == [4, 3, 1]
    load.unlink()
    assert parallel_compile._processes() == 2, "by the load of the last minute, where nothing tells what runs now"
    monkeypatch.setenv(parallel_compile.VARIABLE, "64")
    assert parallel_compile._processes() == parallel_compile.MAX_PROCESSES


@pytest.mark.parametrize("executable", ["/usr/sbin/uwsgi", "", None])
def test_a_program_that_holds_the_interpreter_is_not_started_again(monkeypatch, executable: str | None) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert not parallel_compile._can_start_helpers()


def test_a_helper_for_another_target_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(parallel_compile.pickle, "load", lambda file: pytest.fail("it reads what to compile"))
    asked = cache.Statistics.compiled
    parallel_compile.main("another", "0")
    assert cache.Statistics.compiled == asked


CONV2D = """
import numpy as np
import cpuconv
from cpuconv.runtime.code import kernel_files, parallel_compile
from cpuconv.runtime.code.cache import Statistics

rng = np.random.default_rng(1)
x, w = rng.standard_normal((1, 16, 6, 6), np.float32), rng.standard_normal((16, 16, 1, 1), np.float32)
started, usual = [], parallel_compile._Helper
parallel_compile._Helper = lambda number: started.append(usual(number)) or started[-1]
y = cpuconv.conv2d(x, w, threads=1)
right = np.einsum("kc,nchw->nkhw", w[:, :, 0, 0].astype(np.float64), x.astype(np.float64))
assert np.abs(y - right).max() < 1e-4
there = len(list(kernel_files.folder().path.glob("*.o")))
ended = all(each._process.poll() is not None for each in started)
print(len(started), Statistics.compiled + Statistics.loaded, there, int(ended))
"""


def test_a_first_conv2d_has_a_helper_that_ends_with_it(tmp_path: Path) -> None:
    environ = {**os.environ, "CPUCONV_CACHE_DIR": str(tmp_path), "CPUCONV_PACKS": "0", parallel_compile.VARIABLE: "2"}
    counts = []
    for _ in range(2):
        done = subprocess.run(python("-c", CONV2D), env=environ, capture_output=True, text=True, timeout=300)
        assert not done.returncode, done.stderr
        counts.append([int(word) for word in done.stdout.split()])
    (helpers, used, there, ended), again = counts
    assert (helpers, ended) == (1, 1) and there >= used > 0
    assert again[0] == 0, "kernels are there: nobody helps"


def test_missing_kernels_are_compiled_before_what_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def make() -> str:
        events.append("make")
        if len(events) == 1:
            raise NotCompiled(cache.kernel_files.named("nobody"))
        return "made"

    monkeypatch.setattr(parallel_compile, "compile_in_parallel", lambda wanted: events.extend(wanted))
    assert parallel_compile.with_kernels(lambda: ["compile"], make) == "made"
    assert events == ["make", "compile", "make"]
