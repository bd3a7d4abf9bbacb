"""Stores without a folder, of commands that must write, and the files of claims."""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from pathlib import Path

import platformdirs
import pytest

from autotune.store.claims import LEFT_SECONDS
from autotune.store.database import StoreWarning
from autotune.store.rows import RowLimits
from autotune.store.store import NOWHERE, Store, shared
from autotune.tuning import background
from baselib import paths
from baselib.paths import NoFolderError, cache_folder, store_path
from support.tuner.stored import row

CURRENT = RowLimits(frozenset({"s"}))


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(paths.VARIABLE, raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", refuse)
    monkeypatch.setattr("autotune.store.store._shared", {})


def test_without_home_there_is_no_folder(homeless: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for ask in (cache_folder, store_path, Store):
        with pytest.raises(NoFolderError, match="Could not determine.*name one in CPUCONV_CACHE_DIR"):
            ask()
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_: "~/.cache/cpuconv")  # as older versions say
    with pytest.raises(NoFolderError, match="not an absolute path"):
        cache_folder()
    monkeypatch.setenv(paths.VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path


def test_without_home_all_share_one_store_in_memory(homeless: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = shared()
        before = reader.version()
        assert reader.best("d", "p", CURRENT) is None and reader.devices() == {}
    with pytest.warns(StoreWarning, match="CPUCONV_CACHE_DIR; results are stored in memory only") as caught:
        for name in "ab":
            assert shared(read_only=False).claim("d", name)
            shared(read_only=False).put([row(name, 1e-3)])
    assert len(caught) == 1
    assert shared().best("d", "p", CURRENT).candidate == "a" and reader.version() != before
    assert "in memory only" in reader.health() and reader.path == NOWHERE
    assert not Path(f"{NOWHERE}.claims").exists()


def test_a_strict_store_names_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "store.sqlite"
    with pytest.raises(OSError, match="cannot be written") as caught:
        Store(path, strict=True)
    assert str(path) in str(caught.value)


def test_a_strict_store_stops_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Store(tmp_path / "store.sqlite", strict=True)
    kept.put([row("a", 1e-3)])
    (pages,) = kept._connection.execute("PRAGMA page_count").fetchone()
    kept._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(OSError, match=r"store\.sqlite cannot be written: database or disk is full"):
        kept.put([row(f"c{n}" * 50, 1e-3 + n) for n in range(1000)])
    assert [each.candidate for each in kept.rows("d", "p")] == ["a"]  # and goes on when there is room again
    kept.put([row("b", 1e-4)])
    assert len(Store(kept.path).rows("d", "p")) == 2


def test_a_strict_store_sets_damage_aside(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.warns(StoreWarning, match="moved to"), Store(path, strict=True) as kept:
        kept.put([row("a", 1e-3)])
    assert sqlite3.connect(path).execute("SELECT count(*) FROM trials").fetchone() == (1,)


def test_files_of_old_claims_go_unless_they_are_held(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    holder, folder = Store(path), tmp_path / "store.sqlite.claims"
    assert holder.claim("d", "held") and holder.claim("d", "old")
    for each in folder.iterdir():
        os.utime(each, (time.time() - LEFT_SECONDS - 60,) * 2)
    assert holder.claim("d", "new")
    for name in ("old", "new"):
        holder.release("d", name)
    other = Store(path)
    assert other.claim("d", "new")
    assert len(list(folder.glob("*.lock"))) == 2
    assert not other.claim("d", "held") and other.claim("d", "old")
    assert len(list(folder.glob("*.lock"))) == 3


def test_a_claim_counts_from_when_it_was_taken(tmp_path: Path) -> None:
    path, folder = tmp_path / "store.sqlite", tmp_path / "store.sqlite.claims"
    first = Store(path)
    first.claim("d", "p")
    first.release("d", "p")
    (file,) = folder.glob("*.lock")
    os.utime(file, (0, 0))
    second = Store(path)
    second._claims._is_pruned = True  # it takes the claim before another process looks
    assert second.claim("d", "p")
    second.release("d", "p")
    assert Store(path).claim("d", "q") and file.exists()


def test_background_tuning_goes_on_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("no flock")

    def tune(*_: object) -> None:
        raise Ended

    monkeypatch.setattr(background.FileLock, "acquire", refuse)
    monkeypatch.setattr(background, "_end_with_parent", lambda parent: None)
    monkeypatch.setattr(background, "tune_missed", tune)
    monkeypatch.setattr(background.os, "nice", lambda by: None)
    with pytest.raises(Ended):
        background.main("support.tuner.fake:workload", str(tmp_path / "store.sqlite"), "quick")
