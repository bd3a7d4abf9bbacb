"""Files of compiled kernels: their location, a lock per compilation, and the limit of their total size.

A kernel's folder is named by the target CPU and the versions of Numba and llvmlite, its file by its sources
(`runtime.code.sources.stamp`). Without a folder, or where writing fails, kernels are compiled for this process alone.
This raises no error; there is one warning per process.

Files are read completely before their code runs, so any of them may be deleted at any time: a process that misses one
compiles it again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.machine.device import version_of
from baselib import ownership
from baselib.data_classes import dataclass
from baselib.files import PART
from baselib.paths import NoFolderError, cache_folder
from baselib.signals import deliver_interrupt
from cpuconv.errors import CpuconvWarning
from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.sources.stamp import fault, stamp
from cpuconv.runtime.target import target

LOCK_SECONDS = 120  # max. wait for a lock: compiling takes about 1 s, so a lock held longer belongs to a stuck process
VARIABLE = "CPUCONV_CACHE_BYTES"
MAX_BYTES = 1 << 30  # default limit of the size of all kernels of a user
RECENT_SECONDS = 24 * 3600.0  # kernels used more recently are not removed, whatever their size
LEFT_SECONDS = 3600.0  # age from which a lock or unfinished file is taken as left by a dead process
_NOTE_SECONDS = 3600.0  # resolution of the time of last use
_LOCK_TURN = 0.25  # seconds between checks for an interrupt
_OBJECT, _LOCK = ".o", ".lock"
_FOLDER = re.compile("[0-9a-f]{16}")
_LOOK_BYTES = 64 << 20  # bytes written by a process between two checks of the total size
_NOT_CACHED = "kernels are not cached on disk"


@dataclass(frozen=True)
class Folder:
    """The kernel folder of this target.

    Attributes
    ----------
    path : Path or None
        None if there is none, or if others may write there: then nothing is read.
    trouble : str
        Why kernels cannot be written there; empty if they can.
    """

    path: Path | None
    trouble: str = ""


@functools.lru_cache(maxsize=1)
def folder() -> Folder:
    """Return the folder of this process; create it if it is missing."""
    versions = "\n".join((repr(target()), version_of("numba"), version_of("llvmlite")))
    place: Path | None = None
    try:
        kernels = cache_folder() / "kernels"
        place = kernels / hashlib.sha256(versions.encode()).hexdigest()[:16]
        if (trouble := ownership.claim(kernels.parent, kernels, place)) is not None:
            return _unused(trouble)
        _write(place)
        return Folder(place)
    except NoFolderError as error:
        return _unused(str(error))
    except OSError as error:
        return Folder(place, str(error))


def _unused(trouble: str) -> Folder:
    """Return no folder, and warn at once: other files in the same place are unusable too."""
    _warn(f"{_NOT_CACHED}: {trouble}")
    return Folder(None, trouble)


def _write(place: Path) -> None:
    """Create a temporary file without a name, as a test.

    Raises
    ------
    OSError
        No file can be created there.
    """
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_TMPFILE, 0o600))
    except (AttributeError, OSError):  # not supported on all systems
        import tempfile  # the import takes 5 ms

        tempfile.TemporaryFile(dir=place).close()


@dataclass(frozen=True)
class KernelFile:
    """The file of one kernel.

    Attributes
    ----------
    path : Path or None
        None: the kernel can neither be read nor written.
    trouble : str
        Why the kernel cannot be written; empty if it can.
    name : str
        Unique name among all kernels of a target; empty if there is none.
    """

    path: Path | None
    trouble: str
    name: str = ""

    def read(self) -> bytes | None:
        """Read what `write` wrote, if it is there and passes the checks; update the time of last use."""
        content = None if self.path is None else checked_file.read(self.path)
        if self.path is not None and content is not None:
            with contextlib.suppress(OSError):  # a read-only folder is not pruned either
                if self.path.stat().st_mtime < time.time() - _NOTE_SECONDS:
                    os.utime(self.path)
        return content

    def is_begun(self) -> bool:
        """Whether a process has compiled the kernel, is compiling it, or died while it did."""
        return self.path is not None and any(os.path.exists(f"{self.path}{end}") for end in ("", _LOCK))

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Let one process compile the kernel while others wait; without file locks several may compile it, which only
        costs time."""
        if self.path is None or self.trouble:
            yield
            return
        from filelock import FileLock, Timeout  # the import takes 0.15 s; only needed to compile

        guard = FileLock(f"{self.path}{_LOCK}")
        try:
            for _ in range(max(1, round(LOCK_SECONDS / _LOCK_TURN))):
                with contextlib.suppress(Timeout):
                    guard.acquire(timeout=min(_LOCK_TURN, LOCK_SECONDS))
                    break
                deliver_interrupt()
        except (OSError, NotImplementedError) as error:
            _warn(f"files of kernels cannot be locked, several processes may compile the same one: {error}")
        try:
            yield
        finally:
            if guard.is_locked:
                with contextlib.suppress(OSError, NotImplementedError):
                    guard.release()
                    os.unlink(guard.lock_file)  # waiting processes find the kernel

    def write(self, content: bytes) -> None:
        """Write the kernel; if all kernels take too much space, remove those used longest ago."""
        if self.path is None or self.trouble:
            _warn(f"{_NOT_CACHED}: {self.trouble}")
            return
        try:
            try:
                checked_file.write(self.path, content)
            except FileNotFoundError:  # another process removed the folder, which had been empty for long
                self.path.parent.mkdir(mode=ownership.PRIVATE)
                checked_file.write(self.path, content)
        except OSError as error:
            _warn(f"{_NOT_CACHED}: {error}")
            return
        _prune_if_due(self.path.parent, len(content))


def find(name: str, module: str, identity: str) -> KernelFile:
    """Return the file of the kernel `name` of `module` specialised as `identity`."""
    if (unknown := fault(module)) is not None:
        return KernelFile(None, unknown)
    digest = hashlib.sha256("\n".join((name, stamp(module), identity)).encode()).hexdigest()[:20]
    return named(f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{digest}")


def named(name: str) -> KernelFile:
    """Return the file of the kernel with this file name."""
    place = folder()
    return KernelFile(place.path and place.path / f"{name}{_OBJECT}", place.trouble, name)


def prune(kernels: Path, most: int, own: Path | None = None) -> None:
    """Remove files left by dead processes, then the least recently used kernels of any version, then empty folders.

    Kernels are removed until all take at most `most` bytes or only recent ones are left. The folder `own` stays.
    """
    now = time.time()
    places = [each for each in _entries(kernels) if _FOLDER.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
    found = []
    for entry in itertools.chain(_entries(kernels), *map(_entries, places)):
        status = _status(entry)
        if status is None:
            continue
        if entry.name.endswith((PART, _LOCK)):
            if status.st_mtime < now - LEFT_SECONDS:
                _remove(os.unlink, entry)
        elif entry.name.endswith(_OBJECT):
            found.append((status.st_mtime, status.st_size, entry))
    total = sum(size for _, size, _ in found)
    for used, size, entry in sorted(found, key=lambda each: each[:2]):
        if total <= most or used > now - RECENT_SECONDS:
            break
        _remove(os.unlink, entry)
        total -= size
    for place in places:
        status = place.stat()
        if Path(place.path) != own and status.st_mtime < now - LEFT_SECONDS:
            _remove(os.rmdir, place)  # fails if the folder is not empty


def most_bytes() -> int:
    """Return the limit of the size of all kernels, in bytes."""
    return _number(os.environ.get(VARIABLE, ""))


@functools.cache
def _number(text: str) -> int:
    if not text:
        return MAX_BYTES
    if text.strip().isdecimal():
        return int(text)
    warnings.warn(
        f"{VARIABLE} must be a number of bytes, not {text!r}; {MAX_BYTES} are kept", CpuconvWarning, stacklevel=2
    )
    return MAX_BYTES


_left = 0  # bytes that this process may write before the next check of the total size


def _prune_if_due(place: Path, size: int) -> None:
    global _left
    _left -= size
    if _left < 0:
        _left = _LOOK_BYTES
        prune(place.parent, most_bytes(), place)


def _entries(place: os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return list(entries)
    except OSError:
        return []


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of a regular file; None for anything else, and for a file that is gone."""
    try:
        return entry.stat(follow_symlinks=False) if entry.is_file(follow_symlinks=False) else None
    except OSError:
        return None


def _remove(how: Callable[[str], None], entry: os.DirEntry[str]) -> None:
    with contextlib.suppress(OSError):  # it is gone, or belongs to another user
        how(entry.path)


_has_warned = False


def _warn(message: str) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(message, CpuconvWarning, stacklevel=2)
