"""The files of compiled kernels: who may read them, which of them stay, what happens where none can be kept."""

from __future__ import annotations

import errno
import os
import stat
import time
import warnings
from pathlib import Path

import pytest

from cpuconv.errors import CpuconvWarning
from cpuconv.runtime.code import checked_file, kernel_files
from cpuconv.runtime.code.kernel_files import MAX_BYTES, KernelFile, most_bytes, prune

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
HOUR, DAY = 3600.0, 24 * 3600.0
SIZE = 1000


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_files, "_has_warned", False)
    monkeypatch.setattr(kernel_files, "_left", 0)


def put(path: Path, age: float, size: int = SIZE) -> Path:
    """A file that was used so many seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    used = time.time() - age
    os.utime(path, (used, used))
    return path


def age_of_folder(path: Path, age: float) -> None:
    os.utime(path, (time.time() - age,) * 2)


def test_the_kernels_used_longest_ago_go_first_whatever_their_version(tmp_path: Path) -> None:
    own, other = tmp_path / ("a" * 16), tmp_path / ("b" * 16)
    files = {age: put((own if age % 2 else other) / f"k{age}.o", age * DAY) for age in range(2, 8)}
    prune(tmp_path, 4 * SIZE, own)
    assert {age for age, path in files.items() if path.exists()} == {2, 3, 4, 5}
    prune(tmp_path, 4 * SIZE - 1, own)
    assert {age for age, path in files.items() if path.exists()} == {2, 3, 4}
    prune(tmp_path, 0, own)
    assert not any(path.exists() for path in files.values())
    for each in (own, other):
        age_of_folder(each, 2 * HOUR)
    prune(tmp_path, 0, own)
    assert own.exists() and not other.exists()


def test_what_was_used_today_stays_whatever_its_size(tmp_path: Path) -> None:
    other = tmp_path / ("b" * 16)
    recent, old = put(other / "recent.o", 0.9 * DAY), put(other / "old.o", 1.1 * DAY)
    prune(tmp_path, 0)
    assert recent.exists() and not old.exists()


def test_what_dead_processes_left_goes_and_nothing_else(tmp_path: Path) -> None:
    own = tmp_path / ("a" * 16)
    gone = [put(own / "k.o.lock", 2 * HOUR, 0), put(own / "tmp1.part", 2 * HOUR), put(tmp_path / "tmp2.part", 2 * HOUR)]
    stays = [
        put(own / "m.o.lock", 0.5 * HOUR, 0),
        put(own / "tmp3.part", 0.5 * HOUR),
        put(own / "notes.txt", 99 * DAY),
        put(tmp_path / "sources", 99 * DAY),
        put(tmp_path / "of-others" / "k.o", 99 * DAY),
        put(tmp_path.parent / f"{tmp_path.name}-elsewhere" / "k.o", 99 * DAY),
    ]
    (tmp_path / ("c" * 16)).symlink_to(stays[-1].parent, target_is_directory=True)
    prune(tmp_path, 0, own)
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in stays)


def test_reading_a_kernel_notes_that_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 16) / "k.o"
    path.parent.mkdir()
    file = KernelFile(path, "")
    file.write(b"code")
    put(path.with_name("old.o"), 30 * DAY)
    os.utime(path, (time.time() - 40 * DAY,) * 2)
    assert file.read() == b"code"
    prune(tmp_path, SIZE // 2)
    assert file.read() == b"code" and not path.with_name("old.o").exists()


def test_a_process_that_writes_kernels_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUCONV_CACHE_BYTES", str(SIZE))
    monkeypatch.setattr(kernel_files, "_LOOK_BYTES", 2 * SIZE)
    place = tmp_path / ("a" * 16)
    first, second = (put(tmp_path / (letter * 16) / "k.o", 9 * DAY, 2 * SIZE) for letter in "bc")
    put(first, 10 * DAY, 2 * SIZE)
    place.mkdir()
    KernelFile(place / "1.o", "").write(b"x")
    assert not first.exists() and not second.exists()
    third = put(tmp_path / ("d" * 16) / "k.o", 9 * DAY, 2 * SIZE)
    KernelFile(place / "2.o", "").write(b"x" * SIZE)
    assert third.exists()  # it looks again after as many bytes as that
    KernelFile(place / "3.o", "").write(b"x" * 2 * SIZE)
    assert not third.exists()


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    file = KernelFile(tmp_path / ("a" * 16) / "k.o", "")
    file.write(b"code")
    assert file.read() == b"code"


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "1e9"])
def test_a_bound_that_is_no_number_is_named_once(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    kernel_files._number.cache_clear()
    monkeypatch.setenv("CPUCONV_CACHE_BYTES", text)
    with pytest.warns(CpuconvWarning, match=f"CPUCONV_CACHE_BYTES must be a number of bytes, not '{text}'") as caught:
        assert [most_bytes(), most_bytes()] == [MAX_BYTES] * 2
    assert len(caught) == 1


def test_a_bound_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CPUCONV_CACHE_BYTES", raising=False)
    assert most_bytes() == MAX_BYTES
    monkeypatch.setenv("CPUCONV_CACHE_BYTES", "12345")
    assert most_bytes() == 12345


@posix
@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600), (0o711, 0o600)])
def test_who_may_read_the_folder_may_read_its_files(tmp_path: Path, folder: int, file: int) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(folder)
    before = os.umask(0o077)
    try:
        checked_file.write(tmp_path / "kernels" / "k.o", b"code")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "kernels" / "k.o").stat().st_mode) == file


def test_a_lock_goes_with_the_compile(tmp_path: Path) -> None:
    file = KernelFile(tmp_path / "k.o", "")
    with file.compiling():
        assert (tmp_path / "k.o.lock").exists()
    assert not (tmp_path / "k.o.lock").exists()


@pytest.mark.parametrize(
    "refusal",
    [NotImplementedError("no flock"), OSError(errno.ENOLCK, "no locks available"), OSError(errno.EROFS, "read-only")],
    ids=str,
)
def test_without_locks_kernels_are_kept_and_one_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    import filelock

    def refuse(*_: object, **__: object) -> None:
        raise refusal

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    ran = []
    with pytest.warns(CpuconvWarning, match="cannot be locked") as caught:
        for name in ("a.o", "b.o"):
            file = KernelFile(tmp_path / name, "")
            with file.compiling():
                file.write(b"code")
                ran.append(file.read())
    assert ran == [b"code"] * 2 and len(caught) == 1


def test_a_disk_that_is_full_leaves_nothing_behind_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CpuconvWarning, match="not cached on disk.*No space left") as caught:
        for name in ("a.o", "b.o"):
            KernelFile(tmp_path / name, "").write(b"code")
    assert len(caught) == 1 and list(tmp_path.iterdir()) == []


def test_an_error_of_the_compiler_frees_the_lock(tmp_path: Path) -> None:
    file = KernelFile(tmp_path / "k.o", "")
    with pytest.raises(ZeroDivisionError), file.compiling():
        raise ZeroDivisionError
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with file.compiling():
            pass
