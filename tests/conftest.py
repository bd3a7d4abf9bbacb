"""One kernel cache for all tests of a session and the processes they start; settings of Hypothesis."""

from __future__ import annotations

import collections
import functools
import gc
import multiprocessing
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from support import lowered
from support.running import caches, kept
from support.running.caches import CACHE
from support.tuner.clock import Clock

if TYPE_CHECKING:
    from autotune.store.store import Store
    from cpuconv.kernels.binding.machine import Machine
    from support.tuner import fake

# Before cpuconv is imported.
lowered.install()
os.umask(0o022)  # kernels are not kept in folders that others may write to
caches.link(KEPT := kept.kept())
os.environ["CPUCONV_CACHE_DIR"] = str(CACHE)
os.environ["CPUCONV_COMPILERS"] = "1"  # for each process of tests
os.environ["CPUCONV_BACKGROUND"] = "0"  # processes that live longer than a test
os.environ["CPUCONV_PACKS"] = "0"  # that this checkout may hold: tests compile their kernels

from support import emulated  # noqa: E402

emulated.install()
emulated.only_call_plans()

from autotune.store import database  # noqa: E402
from autotune.wisdom import tiers  # noqa: E402
from cpuconv.conv import session  # noqa: E402
from cpuconv.conv.session import Session  # noqa: E402
from cpuconv.runtime.code import cache  # noqa: E402
from support import machines  # noqa: E402
from support.running import processes  # noqa: E402

# Where the interpreter needs a launcher: a script that holds both, as multiprocessing takes one path alone.
if _script := os.environ.get("CPUCONV_TEST_PYTHON"):
    multiprocessing.set_executable(_script)

settings.register_profile(
    "cpuconv", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("cpuconv")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kept", type=int, help="functions kept in memory without a program (cache.RECENT_FUNCTIONS)")
    parser.addoption("--sample", type=int, default=1, help="of the cases of a test marked `exhaustive` run every n-th")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take every n-th exhaustive case, the same ones every time, and every test that has no cases.

    n is `--sample`, or that over `k` for cases marked `exhaustive(k)`.
    """
    sample, left = config.getoption("--sample"), []
    for item in items:
        mark = item.get_closest_marker("exhaustive") if hasattr(item, "callspec") else None
        every = 1 if mark is None else max(1, sample // (mark.args[0] if mark.args else 1))
        left += [item] if zlib.crc32(item.nodeid.encode()) % every else []
    for item in left:
        items.remove(item)
    config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """Leave the tests themselves, some millions of objects, out of what is searched for garbage ever again."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    kept = config.getoption("--kept")
    if kept is not None:
        cache.RECENT_FUNCTIONS = kept
        cache.Entries._latest = collections.deque(maxlen=kept)


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHE, ignore_errors=True)
    if KEPT and "PYTEST_XDIST_WORKER" not in os.environ:
        kept.prune(KEPT)


@pytest.fixture(autouse=True, scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder in the place of the shipped tables, for what fixtures of modules do too."""
    folder = tmp_path_factory.mktemp("tables")
    session.current = Session(tables=folder, persistent=False)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tables: Path) -> Session:
    """What the process remembers, which is nothing yet; no shipped table decides, and no thread writes to stores."""
    monkeypatch.setattr(session, "current", Session(tables=tables, persistent=False))
    monkeypatch.setattr(database, "_warned", set())
    monkeypatch.delenv(tiers.PINNED, raising=False)
    return session.current


@pytest.fixture(autouse=True)
def no_usual_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of open sizes have no program before they run: tests would compile kernels that they do not call."""
    monkeypatch.setattr("cpuconv.network.compiling._prepare", lambda builder: None)


@pytest.fixture(autouse=True)
def no_driver_by_numba() -> Iterator[None]:
    """All drivers are in the subset of `front_end`, which takes a tenth of Numba's time."""
    before = cache.Statistics.by_numba
    yield
    assert cache.Statistics.by_numba == before


@pytest.fixture(params=machines.MACHINES)
def described(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Each of the described machines in turn; choices are made as on it, and nothing may be compiled or run."""
    with machines.simulating(machines.MACHINES[request.param]) as machine:
        yield machine


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> fake.Clock:
    """The clock that runs of the fake workload move, in place of the tuner's."""
    from support.tuner import fake

    return fake.install(monkeypatch.setattr)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    from autotune.store.store import Store

    return Store(tmp_path / "store.sqlite")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that advances only by runs and sleeping."""
    return Clock(monkeypatch)


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment of a process that imports this tree and its tests."""
    return {**os.environ, "PYTHONPATH": processes.PATH}


@pytest.fixture
def own_store(tmp_path: Path) -> Path:
    """A cache folder with a new store, and the session's kernels."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (CACHE / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "kernels").symlink_to(CACHE / "kernels", target_is_directory=True)
    return folder


@pytest.fixture
def our_store(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that this process looks into, empty."""
    from autotune.store.store import Store

    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(own_store))
    return Store()


@pytest.fixture
def fake_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in processes: the fake workload on its clock, a store of the test's own, and an empty folder."""
    from support.tuner import fake

    monkeypatch.setenv("PYTHONPATH", processes.PATH)
    monkeypatch.setenv("AUTOTUNE_WORKLOAD", "support.tuner.fake:workload")
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_CLOCK", "1")
    fake.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def altered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the fake workload other methods and attributes, by name."""
    from support.tuner import fake

    def alter(**changes: object) -> None:
        for name, change in changes.items():
            monkeypatch.setattr(fake.Fake, name, change)

    return alter


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., str]:
    """Save an ONNX model "net" of the given nodes, inputs and weights, and give its path."""
    from support import models

    pytest.importorskip("onnx")
    return functools.partial(models.save, tmp_path / "net.onnx")


@pytest.fixture
def default_threads() -> Iterator[None]:
    """The number of threads that users set is the default's again afterwards."""
    from cpuconv.runtime.threads import maximum_threads, set_num_threads

    set_num_threads(maximum_threads())
    yield
    set_num_threads(maximum_threads())


@pytest.fixture(scope="module")
def small_work_is_shared() -> Iterator[None]:
    """Threads share work of any size, so that small problems test sharing."""
    from support.running import sharing

    with sharing.small_work_is_shared():
        yield


@pytest.fixture
def no_timing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Fail a test that times a candidate."""
    from autotune.tuning import search

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a candidate was timed")

    for name in ("decide_all", "run_rounds", "calibrate"):
        monkeypatch.setattr(search, name, refuse)
    return refuse
