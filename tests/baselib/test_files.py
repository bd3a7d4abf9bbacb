"""Files are opened if they are regular ones, and written so that they are whole on disk under their names."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from baselib import files, ownership
from baselib.files import open_regular, read_regular, write_whole

posix = pytest.mark.skipif(os.name != "posix", reason="pipes, owners and modes are POSIX's")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    path.chmod(0o644)
    return path


@posix
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a pipe").symlink_to(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "link to a pipe", Path("/dev/zero"), tmp_path / "none"):
        before = len(os.listdir("/dev/fd"))
        for cached in (False, True):
            with pytest.raises(OSError, match="none" if path.name == "none" else "not a regular file|symbolic link"):
                open_regular(path, cached=cached)
        assert len(os.listdir("/dev/fd")) == before


def test_a_bound_is_kept_before_anything_is_read(path: Path) -> None:
    assert read_regular(path, 7) == b"content"
    with pytest.raises(OSError, match="it has 7 bytes, more than 6"):
        read_regular(path, 6)


@posix
def test_links_are_followed_but_in_the_cache_folder(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    assert read_regular(link, 7) == b"content"
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(link, 7, cached=True)


@posix
def test_what_others_may_have_written_is_not_read_of_the_cache_folder(path: Path) -> None:
    assert read_regular(path, 7, cached=True) == b"content"
    for mode in (0o664, 0o646):
        path.chmod(mode)
        assert read_regular(path, 7) == b"content"
        with pytest.raises(PermissionError, match="another user"):
            read_regular(path, 7, cached=True)
    path.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
        with pytest.raises(PermissionError, match="another user"):
            read_regular(path, 7, cached=True)


@posix
@pytest.mark.parametrize(("mask", "mode", "expected"), [(0o022, None, 0o644), (0, None, 0o666), (0o077, 0o644, 0o644)])
def test_permissions_are_those_of_a_new_file_or_stated(path: Path, mask: int, mode: int | None, expected: int) -> None:
    before = os.umask(mask)
    try:
        write_whole({path: "text"}, mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == expected and path.read_text() == "text"
    assert os.listdir(path.parent) == [path.name]


@posix
def test_the_umask_of_the_process_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread would make files that everybody may write to, if it were 0 for a moment."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask is changed"))
    write_whole({path: b"new"})
    assert path.read_bytes() == b"new"


@posix
def test_files_and_their_names_are_on_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        done.append("folder" if is_folder else f"{os.fstat(handle).st_size} bytes")
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *names: done.append("name") or replace(*names))
    write_whole({path: [b"ab", b"c"], path.with_name("other"): "text"})
    assert done == ["3 bytes", "4 bytes", "name", "name", "folder"]
    done.clear()
    write_whole({path: b"again"}, durable=False)
    assert done == ["name"]


def test_two_threads_write_one_file(path: Path) -> None:
    threads = [threading.Thread(target=write_whole, args=({path: bytes([n]) * 1000},)) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({*path.read_bytes()}) == 1 and os.listdir(path.parent) == [path.name]


def test_what_a_failure_leaves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole({path: b"new"})
    assert path.read_bytes() == b"content" and os.listdir(path.parent) == [path.name]


@posix
def test_a_cache_folder_that_others_may_write_to_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from baselib.paths import NoFolderError, cache_folder, store_path

    monkeypatch.setenv(ownership.VARIABLE, str(tmp_path))
    tmp_path.chmod(0o700)
    assert cache_folder() == tmp_path
    for mode in (0o770, 0o707, 0o1777):
        tmp_path.chmod(mode)
        for ask in (cache_folder, store_path):
            with pytest.raises(NoFolderError, match="chmod go-w"):
                ask()
    tmp_path.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(tmp_path, 1234, 1234)
        with pytest.raises(NoFolderError, match="uid 1234"):
            cache_folder()
