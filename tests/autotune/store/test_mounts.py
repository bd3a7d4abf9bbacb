"""Stores on file systems of other machines have a rollback journal, as a write-ahead log is shared memory."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.store import mounts
from autotune.store.mounts import is_remote
from autotune.store.rows import RowLimits
from autotune.store.store import Store
from support.tuner.stored import row

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the table is one of POSIX paths")


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a table of mounts: types of file systems by folder, in this order."""
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "TABLE", table)

    def make(*entries: tuple[str | Path, str]) -> None:
        lines = []
        for number, (place, kind) in enumerate([("/", "ext4"), *entries]):
            escaped = str(place).replace("\\", "\\134").replace(" ", "\\040")
            lines.append(f"{number} 1 0:{number} / {escaped} rw,relatime shared:1 - {kind} server:/some where rw\n")
        table.write_text("".join(lines))

    return make


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "glusterfs", "virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse"],
)
def test_file_systems_of_other_machines(mounted: Callable[..., None], tmp_path: Path, kind: str) -> None:
    mounted((tmp_path / "far", kind))
    assert is_remote(tmp_path / "far" / "not there yet" / "store.sqlite")
    assert not is_remote(tmp_path / "farther" / "store.sqlite")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "fuse.fuse-overlayfs"])
def test_file_systems_of_this_machine(mounted: Callable[..., None], tmp_path: Path, kind: str) -> None:
    mounted((tmp_path, kind))
    assert not is_remote(tmp_path / "store.sqlite")


def test_the_innermost_mount_counts_and_of_one_place_the_last(mounted: Callable[..., None], tmp_path: Path) -> None:
    mounted((tmp_path / "a" / "b", "xfs"), (tmp_path / "a", "nfs"), (tmp_path / "c", "nfs"), (tmp_path / "c", "ext4"))
    assert is_remote(tmp_path / "a" / "x") and not is_remote(tmp_path / "a" / "b" / "x")
    assert not is_remote(tmp_path / "c" / "x")


def test_names_with_spaces_and_links_are_followed(mounted: Callable[..., None], tmp_path: Path) -> None:
    mounted((tmp_path / "two words \\", "nfs"))
    assert is_remote(tmp_path / "two words \\" / "x")
    (tmp_path / "two words \\").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "two words \\", target_is_directory=True)
    assert is_remote(tmp_path / "link" / "x")


@pytest.mark.parametrize("text", ["", "nonsense\n", "1 2 - nfs\n", "\0\xff - - -\n"])
def test_a_table_that_says_nothing(mounted: Callable[..., None], tmp_path: Path, text: str) -> None:
    assert not is_remote(tmp_path / "x")  # there is none
    mounts.TABLE.write_bytes(text.encode("latin-1"))
    assert not is_remote(tmp_path / "x")


def journal(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]


def test_a_store_on_another_machine_has_a_rollback_journal(mounted: Callable[..., None], tmp_path: Path) -> None:
    mounted((tmp_path / "far", "nfs4"))
    for name, expected in (("far", "delete"), ("near", "wal")):
        path = tmp_path / name / "store.sqlite"
        with Store(path) as kept, warnings.catch_warnings():
            warnings.simplefilter("error")
            kept.put([row("a", 1e-3)])
            assert journal(path) == expected
            assert Path(f"{path}-shm").exists() == (expected == "wal")
            reader = Store(path, read_only=True)
            assert reader.best("d", "p", RowLimits(frozenset({"s"}))).candidate == "a"


def test_a_store_that_moves_there_changes_its_journal(mounted: Callable[..., None], tmp_path: Path) -> None:
    mounted()
    path = tmp_path / "store.sqlite"
    with Store(path) as kept:
        kept.put([row("a", 1e-3)])
    assert journal(path) == "wal"
    mounted((tmp_path, "nfs"))
    with Store(path) as kept:
        kept.put([row("b", 1e-4)])
        assert [each.candidate for each in kept.rows("d", "p")] == ["b", "a"]
    assert journal(path) == "delete"
