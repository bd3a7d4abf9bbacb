"""Atomic writing of files, and opening of regular files for reading: other kinds of files are refused."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from baselib.ownership import is_ours

PART = ".part"  # suffix of a file that is being written
_NEW = 0o666  # default mode of a new file, before the umask
_OWNERS = stat.S_IRUSR | stat.S_IWUSR
_READABLE = stat.S_IRGRP | stat.S_IROTH


def _flags(*names: str) -> int:
    """Return flags of `os.open`, without those that this system lacks."""
    return sum(getattr(os, name, 0) for name in names)


_READ = os.O_RDONLY | _flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")  # opening a pipe does not block
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")


# -- reading


def open_regular(path: str | os.PathLike[str], most_bytes: int | None = None, *, cached: bool = False) -> BinaryIO:
    """Open a regular file for reading.

    Parameters
    ----------
    path : path
    most_bytes : int or None
        Maximum size; None: unlimited.
    cached : bool
        Whether it is a file of the cache folder. It must then be no link, belong to this user or root, and not be
        writable by others.

    Raises
    ------
    OSError
        It cannot be opened, is not a regular file (such as a pipe, device or folder), is too large, or could have been
        written by another user.
    """
    try:
        handle = os.open(path, _READ | (_flags("O_NOFOLLOW") if cached else 0))
    except OSError as error:
        if cached and error.errno in (errno.ELOOP, errno.EMLINK) and os.path.islink(path):
            raise OSError(error.errno, _LINK, os.fspath(path)) from None
        raise
    try:
        check_regular(path, os.fstat(handle), cached=cached)
        size = os.fstat(handle).st_size
        if most_bytes is not None and size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most_bytes}", os.fspath(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_regular(path: str | os.PathLike[str], status: os.stat_result, *, cached: bool = False) -> None:
    """Check that a file is regular, and a cached one not writable by others; raises as `open_regular`."""
    name = os.fspath(path)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, _LINK, name)
    if not stat.S_ISREG(status.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, "it is not a regular file", name)
    if cached and not is_ours(status):
        raise PermissionError(errno.EPERM, "another user may have written it", name)


_LINK = "it is a symbolic link, which is not followed here"


def read_regular(path: str | os.PathLike[str], most_bytes: int, *, cached: bool = False) -> bytes:
    """Read a regular file of at most `most_bytes` bytes; raises as `open_regular`."""
    with open_regular(path, most_bytes, cached=cached) as file:
        return file.read(most_bytes)


# -- writing


def write_whole(
    files: Mapping[Path, str | bytes | Iterable[Any]], *, mode: int | None = None, durable: bool = True
) -> None:
    """Write files atomically: texts, bytes, or iterables of bytes.

    All files are complete on disk before the first one gets its name.

    Parameters
    ----------
    files : mapping
        Content of each file, by path.
    mode : int or None
        Permissions of the files; None: the default for new files.
    durable : bool
        Whether files and their names are on disk when this returns, and survive a power failure. Otherwise the system
        writes them later and a file may be damaged: for content that can be made again.
    Raises
    ------
    OSError
        A file cannot be written; no file has been replaced, unless a renaming failed.
    """
    with contextlib.ExitStack() as leftovers:
        renames = []
        for path, content in files.items():
            handle, name = _new_file(path.absolute(), _NEW if mode is None else mode)
            leftovers.callback(Path(name).unlink, missing_ok=True)
            with os.fdopen(handle, "wb") as file:
                if mode is not None and hasattr(os, "fchmod"):  # independent of the umask
                    os.fchmod(handle, mode)
                file.writelines(_parts(content))
                if durable:
                    file.flush()
                    _sync(handle)
            renames.append((name, path))
        for name, path in renames:
            os.replace(name, path)
    for folder in {path.absolute().parent for path in files} if durable else ():
        with contextlib.suppress(OSError):  # some systems and permissions do not allow opening a folder
            handle = os.open(folder, os.O_RDONLY | _flags("O_DIRECTORY", "O_CLOEXEC"))
            try:
                _sync(handle)
            finally:
                os.close(handle)


def private_mode(folder: Path) -> int:
    """Return the permissions of a file that only its owner may write, and the folder's readers may read."""
    return _OWNERS | folder.stat().st_mode & _READABLE


def _new_file(path: Path, mode: int) -> tuple[int, str]:
    """Create a file next to the path, with a unique name; return its descriptor and name."""
    while True:
        name = str(path.with_name(f".{path.name[:40]}.{os.urandom(8).hex()}{PART}"))
        try:
            return os.open(name, _WRITE, mode), name
        except FileExistsError:
            continue
        except OSError as error:  # report the final path, as the temporary name means nothing to users
            raise OSError(error.errno, error.strerror, str(path)) from None


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # file systems without fsync
            raise


def _parts(content: str | bytes | Iterable[Any]) -> Iterable[Any]:
    if isinstance(content, str):
        return [content.encode()]
    return [content] if isinstance(content, bytes) else content
