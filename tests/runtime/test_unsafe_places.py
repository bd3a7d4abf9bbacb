"""Where nothing of the cache folder is safe to use, and where memory that was written may not be executed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.running.places import EVERYTHING, ONE_CALL, PRELUDE, run, start, uncached

posix = pytest.mark.skipif(os.name != "posix", reason="modes and pipes are POSIX's")


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_nothing_of_a_cache_folder_is_used_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    """Neither its kernels, nor its store, nor its layouts: all is as it was, and one warning says how to mend it."""
    folder = tmp_path / "cache"
    (folder / "layouts").mkdir(parents=True)
    os.mkfifo(folder / "autotune.sqlite")  # who opened it would wait
    folder.chmod(mode)
    said = run(EVERYTHING, CPUCONV_CACHE_DIR=str(folder))
    uncached(said, f"'chmod go-w {folder}' mends it")
    assert sorted(each.name for each in folder.rglob("*")) == ["autotune.sqlite", "layouts"]


@posix
def test_pipes_in_the_cache_folder_are_not_waited_for(tmp_path: Path) -> None:
    assert run(ONE_CALL, CPUCONV_CACHE_DIR=str(tmp_path))["compiled"]
    kernels = [*tmp_path.glob("kernels/*/*.o")]
    for each in (*kernels, tmp_path / "kernels" / "sources", tmp_path / "kernels" / "stamps"):
        each.unlink(missing_ok=True)
        os.mkfifo(each)
    said = run(ONE_CALL, CPUCONV_CACHE_DIR=str(tmp_path))
    assert said["right"] and said["compiled"] and said["warnings"] == []
    assert all(each.is_file() for each in kernels)


# -- memory that was written may not be executed

DENIED = """
import ctypes
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, as systemd's MemoryDenyWriteExecute
    print('{"denied": false}')
    raise SystemExit
"""
FAILING = """
try:
    say(right(cpuconv.conv2d(x, w)))
except cpuconv.CpuconvError as error:
    print(repr(str(error)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux denies it")
def test_where_written_memory_may_not_be_executed_kernels_on_disk_run(tmp_path: Path) -> None:
    variables = {"CPUCONV_CACHE_DIR": str(tmp_path)}
    done = start(DENIED + PRELUDE + FAILING, **variables)
    if done.stdout.startswith('{"denied"'):
        pytest.skip("this system cannot deny it")
    assert "must be compiled" in done.stdout and "MemoryDenyWriteExecute" in done.stdout, done.stdout + done.stderr
    call = "say(right(cpuconv.conv2d(x, w, threads=threads)))"
    assert run(call, **variables)["compiled"]
    said = run(call, DENIED, **variables)
    assert said["right"] and said["compiled"] == 0 and said["loaded"] >= 2 and said["warnings"] == []
