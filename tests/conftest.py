"""One kernel cache for all tests of a session and the processes they start, and Hypothesis without surprises."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clock import Clock
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from autotune.store.store import Store
    from bench.tuning import fake
    from cpuconv.solvers.shared.machine import Machine

ROOT = Path(__file__).resolve().parent.parent

# Before cpuconv is imported: CPUCONV_TEST_CACHE names a folder that outlives the session, else kernels start cold.
_kept = os.environ.get("CPUCONV_TEST_CACHE")
CACHE = Path(_kept).absolute() if _kept else Path(tempfile.mkdtemp(prefix="cpuconv-tests-"))
os.environ["CPUCONV_CACHE_DIR"] = str(CACHE)
os.umask(0o022)  # kernels are not kept in folders that others may write to

import machines  # noqa: E402

# Where the interpreter needs a launcher: a script that holds both, as multiprocessing takes one path alone.
if _script := os.environ.get("CPUCONV_TEST_PYTHON"):
    multiprocessing.set_executable(_script)

settings.register_profile(
    "cpuconv", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("cpuconv")


def pytest_unconfigure() -> None:
    if not _kept:
        shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def no_attendant() -> None:
    """No thread of this process writes what was missed to stores, while a test looks at it."""
    from cpuconv.choice import untuned_log as missed

    missed._thread = threading.main_thread()


@pytest.fixture(autouse=True, scope="session")
def no_shipped_tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The package's own table of the device that the tests run on decides nothing in this process."""
    from autotune.wisdom.tiers import Layers
    from cpuconv.choice import tuned

    tuned._layers = Layers(tmp_path_factory.mktemp("tables"))


@pytest.fixture(autouse=True)
def new_look() -> None:
    """Layers of wisdom that another test has looked at, in its own environment, are looked at again."""
    from cpuconv.choice import tuned

    tuned.forget()


@pytest.fixture(params=machines.MACHINES)
def described(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Each of the described machines, on which choices are then made; nothing may be compiled or run."""
    with machines.on(machines.MACHINES[request.param]) as machine:
        yield machine


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> fake.Clock:
    """The clock that runs of the fake workload move, in place of the tuner's."""
    from bench.tuning import fake

    return fake.install(monkeypatch.setattr)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    from autotune.store.store import Store

    return Store(tmp_path / "store.sqlite")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that only runs and sleeping advance."""
    return Clock(monkeypatch)


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment of a process that imports this tree and its tests."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}


@pytest.fixture
def own_store(tmp_path: Path) -> Path:
    """A cache folder with a store of its own, and the session's kernels."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (CACHE / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "kernels").symlink_to(CACHE / "kernels", target_is_directory=True)
    return folder


@pytest.fixture(scope="module")
def small_work_is_shared() -> Iterator[None]:
    """Threads share work of any size, so that small problems test them."""
    from cpuconv import recipe

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "_SERIAL_FLOPS", -1)
        yield


@pytest.fixture
def no_timing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Fail whoever times a candidate."""
    from autotune.tuning import search

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a candidate was timed")

    for name in ("settle", "run_rounds", "calibrate"):
        monkeypatch.setattr(search, name, refuse)
    return refuse
