"""The store's file: set aside when damaged, foreign or of another version; in memory when read-only or full."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.store import database, schema
from autotune.store.database import StoreWarning
from autotune.store.rows import Row, RowLimits, checksum, to_values
from autotune.store.store import Store
from support.tuner.stored import row

CURRENT = RowLimits(frozenset({"s"}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store.sqlite"


DAMAGED = {
    "garbage": b"this is no database" * 100,
    "short": b"x",
    "torn": None,
}


def change(path: Path, statement: str) -> list[tuple]:
    """Run a statement on the file, as another program does; gives what it finds."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections that are opened, the latest last."""
    connect, made = sqlite3.connect, []
    monkeypatch.setattr(
        sqlite3, "connect", lambda *given, **options: made.append(connect(*given, **options)) or made[-1]
    )
    return made


OTHER_VERSIONS = {"older": -2, "newer": 1}


def spoil(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "torn":
        Store(path).put([row(f"c{n}", 1e-3) for n in range(500)])
        change(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        content = path.read_bytes()
        path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    elif kind == "foreign":
        change(path, "CREATE TABLE trials (mine)")
    elif kind in OTHER_VERSIONS:
        Store(path).close()
        change(path, f"PRAGMA user_version={database.VERSION + OTHER_VERSIONS[kind]}")
    else:
        path.write_bytes(DAMAGED[kind])


@pytest.mark.parametrize("kind", ["garbage", "short", "torn", "foreign", "older", "newer"])
def test_what_cannot_be_used_is_set_aside(path: Path, kind: str) -> None:
    spoil(path, kind)
    content = path.read_bytes()
    with pytest.warns(StoreWarning, match=r"moved to store\.sqlite\.corrupt-1") as caught:
        kept = Store(path)
        kept.put([row("a", 1e-3)])
        assert kept.rows("d", "p")[0].candidate == "a"
    assert len(caught) == 1
    assert path.with_name("store.sqlite.corrupt-1").read_bytes()[:16] == content[:16]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(path).best("d", "p", CURRENT).candidate == "a"


def test_the_second_set_aside_has_its_own_name(path: Path) -> None:
    for number in (1, 2):
        spoil(path, "garbage")
        with pytest.warns(StoreWarning, match=f"corrupt-{number}"):
            Store(path).close()


@pytest.mark.parametrize("kind", ["garbage", "torn", "foreign", "older", "newer"])
def test_a_reader_leaves_the_file_alone(path: Path, kind: str) -> None:
    spoil(path, kind)
    reader = Store(path, read_only=True)
    with pytest.warns(StoreWarning, match="cannot be read") as caught:
        assert reader.best("d", "p", CURRENT) is None
        assert reader.best("d", "q", CURRENT) is None
    assert len(caught) == 1
    assert not list(path.parent.glob("*corrupt*"))


@pytest.mark.parametrize("kind", ["garbage", "torn", "foreign", "older", "newer"])
def test_who_passes_a_file_over_and_then_moves_it_warns_once(path: Path, kind: str) -> None:
    spoil(path, kind)
    with pytest.warns(StoreWarning, match="cannot be read") as caught:
        assert Store(path, read_only=True).best("d", "p", CURRENT) is None
        Store(path).put([row("a", 1e-3)])
    assert len(caught) == 1
    assert Store(path, read_only=True).best("d", "p", CURRENT).candidate == "a"
    path.write_bytes(b"garbage again" * 100)
    with pytest.warns(StoreWarning):
        Store(path).close()


def test_a_row_that_has_changed_is_passed_over(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 1e-3), row("b", 2e-3), row("c", 3e-3)])
    change(path, "UPDATE trials SET median = 4e-3 WHERE candidate = 'a'")
    change(path, "UPDATE trials SET candidate = 'x' WHERE candidate = 'c'")
    with pytest.warns(StoreWarning, match="damaged rows, which are skipped") as caught:
        assert kept.best("d", "p", CURRENT).candidate == "b"
        assert [each.candidate for each in kept.rows("d", "p")] == ["b"]
    assert len(caught) == 1


def test_a_reader_takes_nothing_from_an_empty_file(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = Store(path, read_only=True)
        assert reader.rows("d", "p") == [] and path.read_bytes() == b""
        Store(path).put([row("a", 1e-3)])
        assert [each.candidate for each in reader.rows("d", "p")] == ["a"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM finished; END",
        "CREATE TABLE more (x)",
        "DROP TABLE missed",
        "CREATE INDEX i ON trials (candidate)",
    ],
)
def test_a_file_with_other_tables_is_no_store(path: Path, statement: str) -> None:
    """What a file brings must not run inside our statements."""
    Store(path).close()
    change(path, statement)
    with pytest.warns(StoreWarning, match="its tables are not a store's"):
        Store(path).put([row("a", 1e-3)])
    assert path.with_name("store.sqlite.corrupt-1").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="SQLite's other file systems are those of Unix")
def test_a_file_system_without_shared_memory_gets_another_journal(path: Path, monkeypatch) -> None:
    with Store(path):
        assert change(path, "PRAGMA journal_mode") == [("wal",)]
    path.unlink()
    connect = sqlite3.connect

    def without(name: str, **options):
        return connect(f"file:{name}?vfs=unix-dotfile", **{**options, "uri": True})

    monkeypatch.setattr(sqlite3, "connect", without)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Store(path) as kept:
            assert change(path, "PRAGMA journal_mode") == [("delete",)]
            kept.put([row("a", 1e-3)])
            assert kept.best("d", "p", CURRENT).candidate == "a"


def test_a_full_disk_leaves_memory(path: Path, opened: list[sqlite3.Connection]) -> None:
    kept = Store(path)
    kept.put([row("a", 2e-3)])
    (pages,) = opened[-1].execute("PRAGMA page_count").fetchone()
    opened[-1].execute(f"PRAGMA max_page_count={pages}")
    with pytest.warns(StoreWarning, match="full.*in memory only") as caught:
        kept.put([row(f"c{n}" * 50, 1e-3 + n) for n in range(1000)])
        kept.put([row("z", 1e-4)])
    assert len(caught) == 1
    assert len(kept.rows("d", "p")) == 1002
    assert kept.best("d", "p", CURRENT).candidate == "z"
    assert "in memory" in kept.health()
    assert [each.candidate for each in Store(path).rows("d", "p")] == ["a"]


def test_a_read_only_file_leaves_memory(path: Path, opened: list[sqlite3.Connection]) -> None:
    kept = Store(path)
    kept.put([row("a", 2e-3)])
    opened[-1].execute("PRAGMA query_only=1")
    with pytest.warns(StoreWarning, match="readonly.*in memory only"):
        kept.put([row("b", 1e-3)])
    assert [each.candidate for each in kept.rows("d", "p")] == ["b", "a"]


def test_a_folder_that_cannot_be_made_leaves_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(StoreWarning, match="in memory only"):
        kept = Store(tmp_path / "file" / "store.sqlite")
    kept.put([row("a", 1e-3)])
    assert kept.best("d", "p", CURRENT).candidate == "a"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_read_and_left_alone(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 1e-3)])
    kept.close()
    path.parent.chmod(0o555)
    try:
        assert Store(path, read_only=True).best("d", "p", CURRENT).candidate == "a"
        with pytest.warns(StoreWarning, match="in memory only"):
            Store(path).put([row("b", 1e-4)])
    finally:
        path.parent.chmod(0o755)


def test_a_reader_names_the_trouble(path: Path) -> None:
    spoil(path, "foreign")
    reader = Store(path, read_only=True)
    assert "another program" in reader.health()
    with pytest.warns(StoreWarning, match="another program"):
        assert reader.rows("d", "p") == []
    assert reader.devices() == {}


def test_a_store_that_another_process_just_creates_is_no_foreign_one(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("PRAGMA journal_mode=WAL")

        class Interrupted:
            """Reads, and another process creates the store after the first look at the tables."""

            in_transaction = property(lambda self: reader.in_transaction)

            def execute(self, statement: str) -> object:
                found = reader.execute(statement).fetchall()
                if "sqlite_master" in statement:
                    Store(path).put([row("a", 1.0)])
                return SimpleNamespace(fetchall=lambda: found, fetchone=lambda: found[0])

        assert not database.has_tables(Interrupted())
        assert database.has_tables(reader)


def test_a_store_of_the_version_before_keeps_its_rows(path: Path) -> None:
    stored = row("a", 1e-3, created=5.0, weights="cold")
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in schema.FORMER.values():
            connection.execute(statement)
        *values, kernels, _ = to_values(stored)
        assert kernels == ""
        for candidate, check in ((stored.candidate, checksum(*values)), ("damaged", 1)):
            values[Row._fields.index("candidate")] = candidate
            connection.execute(f"INSERT INTO trials VALUES ({', '.join('?' * (len(values) + 1))})", (*values, check))
        connection.execute("INSERT INTO finished VALUES ('d', 'p', 'cold', 'quick', 's', 1, 5.0)")
        connection.execute(f"PRAGMA application_id={database.APPLICATION}")
        connection.execute(f"PRAGMA user_version={schema.FORMER_VERSION}")
        connection.commit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = Store(path)
        assert [each.candidate for each in kept.rows("d", "p", "cold")] == ["a"]
    assert [each.problem for each in kept.finished("d")] == ["p"]
    with Store(path.with_name("fresh.sqlite")) as fresh:
        query = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        assert change(kept.path, query) == change(fresh.path, query)


# -- files that are not regular files of this user's


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.parametrize("suffix", ["", *database.JOURNALS])
def test_a_pipe_is_set_aside_and_not_waited_for(path: Path, suffix: str) -> None:
    if suffix:
        with Store(path) as store:
            store.put([row("a", 1e-3)])
    else:
        path.parent.mkdir()
    for end in database.JOURNALS:
        Path(f"{path}{end}").unlink(missing_ok=True)
    os.mkfifo(f"{path}{suffix}")
    with pytest.warns(StoreWarning, match="not a regular file"):
        assert Store(path, read_only=True).rows("d", "p") == []
    database._warned.clear()
    with pytest.warns(StoreWarning, match="not a regular file.*a new store is created"):
        store = Store(path)
    store.put([row("b", 1e-3)])
    assert path.is_file() and len(list(path.parent.glob("*.corrupt-1*"))) >= 1


@pytest.mark.skipif(os.name != "posix", reason="links and modes are POSIX's")
@pytest.mark.parametrize("what", ["link", "open"])
def test_a_store_of_the_cache_folder_is_this_users_alone(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with Store(path) as store:
        store.put([row("a", 1e-3)])
    linked = tmp_path / "linked.sqlite"
    linked.symlink_to(path)
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path / "elsewhere"))
    with Store(linked, read_only=True) as store:  # whoever names a store may name a link
        assert len(store.rows("d", "p")) == 1
    if what == "link":
        path.rename(tmp_path / "other.sqlite")
        path.symlink_to(tmp_path / "other.sqlite")
    else:
        path.chmod(0o666)
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(path.parent))
    with pytest.warns(StoreWarning, match="symbolic link" if what == "link" else "another user"):
        assert Store(path, read_only=True).rows("d", "p") == []
