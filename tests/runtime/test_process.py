"""What must hold from one process to the next: the kernel cache, start-up, fork, threading layers, other CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baselib import ownership
from support.running import processes, shipped
from support.running.caches import CACHE

PRELUDE = """
import json, os, sys, threading, time, warnings
import numpy as np
import cpuconv
from cpuconv.errors import CpuconvWarning
from cpuconv.runtime.code.cache import Statistics
from cpuconv.runtime.code.kernel_files import folder

x = np.random.default_rng(0).standard_normal((1, 32, 28, 28), np.float32)
w = np.random.default_rng(1).standard_normal((32, 32, 3, 3), np.float32) / 17
w.flags.writeable = False

def right(y, w=w):
    from cpuconv.problem import reference
    problem = cpuconv.ConvProblem(1, 32, 28, 28, 32, *w.shape[2:], pads=(w.shape[2] // 2,) * 4)
    return reference.relative_error(y, reference.conv2d(x, w, None, problem)) < 1e-4

def same_from_threads(made, expected, count, turns):
    results = []
    def caller():
        for _ in range(turns):
            results.append(bool((made(x) == expected).all()))
    callers = [threading.Thread(target=caller) for _ in range(count)]
    for each in callers: each.start()
    for each in callers: each.join()
    return all(results) and len(results) == count * turns

def say(**values):
    counts = {"compiled": Statistics.compiled, "loaded": Statistics.loaded}
    print(json.dumps({"folder": str(folder().path), "writable": not folder().trouble, **counts, **values}))
"""
ONE_CALL = """
w = w[:, :, :1, :1].copy()  # whose kernels are compiled sooner
y = cpuconv.conv2d(x, w)
say(right=right(y, w))
"""


def told(done: subprocess.CompletedProcess[str]) -> dict:
    """What a process said."""
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


def run(code: str, before: str = "", **variables: str) -> dict:
    """What a process says that runs the code after the prelude, `before` being run first of all."""
    return told(processes.run("-c", before + PRELUDE + shipped.code() + code, **variables))


def objects(cache: Path) -> list[Path]:
    return sorted(cache.glob("kernels/*/*.o"))


def test_second_process(own_store):
    """It compiles nothing."""
    variables = {"CPUCONV_CACHE_DIR": str(own_store)}
    assert run(ONE_CALL, **variables)["right"]
    said = run(ONE_CALL, **variables)
    assert said["right"] and said["compiled"] == 0 and said["loaded"] >= 2


def test_compiling_at_once_and_damage(tmp_path):
    """Two processes fill an empty cache together; damaged kernels are then compiled again, and only those."""
    variables = {"CPUCONV_CACHE_DIR": str(tmp_path)}
    for process in [processes.start("-c", PRELUDE + shipped.code() + ONE_CALL, **variables) for _ in range(2)]:
        said = told(processes.finish(process))
        assert said["right"] and said["compiled"] + said["loaded"] >= 2
    files = objects(tmp_path)
    assert len(files) >= 2
    assert not list(tmp_path.glob("kernels/*/*.part"))

    first, second = files[0].read_bytes(), files[1].read_bytes()
    files[0].write_bytes(first[:-9] + bytes([first[-9] ^ 1]) + first[-8:])
    files[1].write_bytes(second[: len(second) // 2])
    said = run(ONE_CALL, **variables)
    assert said["right"] and said["compiled"] == 2
    said = run(ONE_CALL, **variables)
    assert said["right"] and said["compiled"] == 0
    assert len(objects(tmp_path)) == len(files)


def test_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    said = run(ONE_CALL, CPUCONV_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert said["right"] and not said["writable"] and said["compiled"] >= 2
    assert said["stderr"].count("CpuconvWarning: kernels are not cached on disk") == 1


READ_ONLY = """
import os, tempfile
NAMELESS = getattr(os, "O_TMPFILE", None)
opened = os.open

def refuse(*arguments, **settings):
    raise PermissionError("read-only")

def others(path, flags, *rest, **settings):
    return (refuse if NAMELESS and flags & NAMELESS == NAMELESS else opened)(path, flags, *rest, **settings)

os.open, tempfile.TemporaryFile = others, refuse
"""


def test_kernels_of_a_read_only_folder_are_used(tmp_path):
    variables = {"CPUCONV_CACHE_DIR": str(tmp_path)}
    assert run(ONE_CALL, **variables)["compiled"] >= 2
    said = run(ONE_CALL, READ_ONLY, **variables)
    assert said["right"] and not said["writable"] and said["compiled"] == 0


posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")


@posix
@pytest.mark.parametrize("place", [".", "kernels/*"])
def test_kernels_that_others_may_write_are_not_used(own_store, tmp_path, place):
    """They are compiled for the process alone, and one warning says how to mend it."""
    kernels = own_store / "kernels"
    kernels.unlink()
    (tmp_path / "elsewhere").mkdir()
    kernels.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    variables = {"CPUCONV_CACHE_DIR": str(own_store)}
    assert run(ONE_CALL, **variables)["writable"]
    before = {each: each.stat().st_mtime_ns for each in objects(own_store)}
    (folder,) = (each for each in own_store.glob(place) if each.is_dir()) if place != "." else [own_store]
    folder.chmod(0o775)
    said = run(ONE_CALL, **variables)
    assert said["right"] and (said["folder"], said["writable"], said["loaded"]) == ("None", False, 0)
    assert said["compiled"] >= 2
    assert said["stderr"].count("CpuconvWarning") == 1 and f"'chmod go-w {folder}' mends it" in said["stderr"]
    assert {each: each.stat().st_mtime_ns for each in objects(own_store)} == before
    # Mended, but a file may be a stranger's still: that one is replaced.
    folder.chmod(0o755)
    first = objects(own_store)[0]
    first.chmod(0o666)
    said = run(ONE_CALL, **variables)
    assert said["compiled"] == 1 and said["loaded"] >= 1 and "CpuconvWarning" not in said["stderr"]
    assert not first.stat().st_mode & 0o022


@posix
def test_new_folders_are_kept_from_others(tmp_path):
    said = run(ONE_CALL, "import os; os.umask(0o002)\n", CPUCONV_CACHE_DIR=str(tmp_path / "cache"))
    assert said["writable"]
    made = [tmp_path / "cache", *(each for each in (tmp_path / "cache").glob("kernels/**") if each.is_dir())]
    assert len(made) >= 3 and not any(each.stat().st_mode & 0o022 for each in made)


@posix
def test_whose_a_folder_is(tmp_path, monkeypatch):
    me = 1234
    monkeypatch.setattr(os, "geteuid", lambda: me)

    def fault(owner: int, mode: int) -> str | None:
        status = os.stat_result((mode, 1, 1, 1, owner, 1, 0, 0, 0, 0))
        with monkeypatch.context() as patch:
            patch.setattr(type(tmp_path), "stat", lambda self, **_: status)
            return ownership.fault(tmp_path)

    assert fault(me, 0o700) is fault(me, 0o755) is fault(0, 0o755) is None  # root can do anything anyway
    assert "chmod go-w" in fault(me, 0o775) and "chmod go-w" in fault(0, 0o777)
    assert "uid 999" in fault(999, 0o755) and "CPUCONV_CACHE_DIR" in fault(999, 0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "uid 1234" in fault(me, 0o755)


FORK = """
threads = cpuconv.get_num_threads()
made = cpuconv.plan(x.shape, w, padding=1, strategy="heuristic")
before = made(x)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    tasks = lambda: len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 0
    others = tasks()  # an emulator has threads too
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same = all((made(x) == before).all() for _ in range(3))
    count = sum(issubclass(each.category, CpuconvWarning) for each in caught)
    os.write(writing, json.dumps([bool(same), count, tasks() - others]).encode())
    os._exit(0)
os.close(writing)
same, count, helpers = json.loads(os.read(reading, 100))
os.waitpid(child, 0)
from cpuconv.runtime.threads import pool
after = bool((made(x) == before).all())
say(right=right(before) and after, same=same, count=count, helpers=helpers, threads=threads, layer=pool().layer)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_fork(layer):
    """A child of fork starts threads of its own; a layer's pool is dead there: it runs serially and says so once. Its
    parent goes on."""
    said = run(FORK, NUMBA_THREADING_LAYER=layer)
    assert said["right"] and said["same"]
    serial = said["threads"] > 1 and said["layer"] == "workqueue"
    assert said["count"] == (1 if serial else 0)
    assert said["layer"] != "own" or said["helpers"] == said["threads"] - 1  # the threads of the child


FORKED_MODEL = """
import onnx.parser, onnx.numpy_helper
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    'g (float[N,32,28,28] x) => (float[N,64,28,28] y) '
    '{ a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Add(a, x) c = Relu(b) y = Concat<axis = 1>(c, x) }')
model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
made = cpuconv.compile(model, threads=min(2, cpuconv.get_num_threads()), strategy="heuristic")
before = made(x)
both = np.concatenate([x, -x])
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    same = all((made(x) == before).all() for _ in range(3))
    same &= bool((np.abs(made(both)[0] - before[0]) < 1e-4).all())  # a program that is made in the child
    os.write(writing, json.dumps(bool(same)).encode())
    os._exit(0)
os.close(writing)
same = json.loads(os.read(reading, 100))
_, status = os.waitpid(child, 0)
after = bool((made(x) == before).all() and (np.abs(made(both)[0] - before[0]) < 1e-4).all())
expected = cpuconv.conv2d(x, w, padding=1, residual=x, activation="relu")
say(right=bool(np.abs(before[:, :32] - expected).max() < 1e-4) and after, same=same, status=status)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads are those of Numba's layer")
def test_fork_of_a_process_with_a_network():
    """A child of fork runs models that were made before, and makes programs of its own."""
    pytest.importorskip("onnx")
    said = run(FORKED_MODEL)
    assert said["right"] and said["same"] and said["status"] == 0


WORKQUEUE = """
from cpuconv.runtime.threads import pool
made = cpuconv.plan(x.shape, w, padding=1, strategy="heuristic")
first = made(x)
say(right=right(first), same=same_from_threads(made, first, 4, 50), layer=pool().layer)
"""


def test_workqueue():
    """The layer that does not survive calls from several threads gets one at a time."""
    said = run(WORKQUEUE, NUMBA_THREADING_LAYER="workqueue")
    assert said["layer"] == "workqueue"
    assert said["right"] and said["same"]


ONE_CORE = """
most = cpuconv.get_num_threads()
made = cpuconv.plan(x.shape, w, padding=1, strategy="heuristic")
first = made(x)
core = min(os.sched_getaffinity(0))
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {core})
say(right=right(first), same=same_from_threads(made, first, 3, 100))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is set for each thread")
def test_a_process_that_loses_its_cores():
    """A plan for several threads goes on when all of them are put on one core."""
    said = run(ONE_CORE)
    assert said["right"] and said["same"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads are those of Numba's layer")
def test_a_process_may_end_while_its_threads_wait():
    """Whether they look at their mailboxes still, or sleep."""
    for pause in (0, 0.01):
        said = run(f"{ONE_CALL}\ntime.sleep({pause})")
        assert said["right"]


GENERATED = """
from cpuconv.runtime.front_end import by_numba
from cpuconv.runtime.target import target
print(by_numba.codegen().magic_tuple() == target())
"""


def test_drivers_of_a_cpu_that_is_named_alone_do_without_the_hosts_features(monkeypatch):
    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    assert processes.run("-c", GENERATED, NUMBA_CPU_NAME="x86-64-v2").stdout.split() == ["True"]


LOADED = """
import sys
from pathlib import Path
import cpuconv
from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.loading import loader
kept = []
for file in sys.stdin.read().splitlines():
    kernel = KernelBody.of(checked_file.read(Path(file)))
    kept.append(loader.load(kernel.code, kernel.symbol))
print(len(kept), [name for name in ("numba", "llvmlite") if name in sys.modules])
"""


@pytest.mark.skipif(sys.platform != "linux" or sys.byteorder != "little", reason="object files are ELF on Linux")
def test_kernels_need_nothing_that_is_not_there():
    """What an object file names is there in a process that has only imported the library, without Numba."""
    run(ONE_CALL)
    files = objects(CACHE)
    assert files
    said = processes.run("-c", LOADED, stdin="\n".join(map(str, files))).stdout.strip()
    assert said == f"{len(files)} []"


def test_import_is_light():
    """Importing compiles nothing, starts no thread, and leaves heavy modules alone."""
    code = """
import json, sys, threading
import cpuconv
from cpuconv.runtime.code.cache import Statistics
heavy = [name for name in ("onnx", "torch", "scipy.fft", "rich", "hypothesis") if name in sys.modules]
print(json.dumps({"heavy": heavy, "compiled": Statistics.compiled, "threads": threading.active_count()}))
"""
    said = told(processes.run("-c", code))
    assert said["heavy"] == [] and said["compiled"] == 0 and said["threads"] == 1
