"""Files that appear whole or not at all, and regular files opened for reading: anything else is refused at once."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from autotune.ownership import is_ours

PART = ".part"  # ends the name of a file that is being written
_NEW = 0o666  # the mode of any new file, before the umask
_OWNERS = stat.S_IRUSR | stat.S_IWUSR
_READABLE = stat.S_IRGRP | stat.S_IROTH


def _flags(*names: str) -> int:
    """Flags of `os.open`, as far as this system has them."""
    return sum(getattr(os, name, 0) for name in names)


_READ = os.O_RDONLY | _flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")  # a pipe is not waited for
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")


# -- reading


def open_regular(path: str | os.PathLike[str], most_bytes: int | None = None, *, cached: bool = False) -> BinaryIO:
    """Open a regular file for reading.

    Parameters
    ----------
    path : path
    most_bytes : int or None
        Size up to which it is opened; None: any.
    cached : bool
        Whether it is a file of the cache folder, which must be no link and belong to this user or root, and which
        nobody else may write to.

    Raises
    ------
    OSError
        It cannot be opened, is no regular file (such as a pipe, a device or a folder), is larger, or could have been
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
    """See that a file is a regular one, and one of the cache folder ours alone; raises as `open_regular`."""
    name = os.fspath(path)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, _LINK, name)
    if not stat.S_ISREG(status.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, "it is no regular file", name)
    if cached and not is_ours(status):
        raise PermissionError(errno.EPERM, "another user may have written it", name)


_LINK = "it is a symbolic link, which is not followed here"


def read_regular(path: str | os.PathLike[str], most_bytes: int, *, cached: bool = False) -> bytes:
    """The content of a regular file of at most so many bytes; raises as `open_regular`."""
    with open_regular(path, most_bytes, cached=cached) as file:
        return file.read(most_bytes)


# -- writing


def write_whole(
    files: Mapping[Path, str | bytes | Iterable[Any]], *, mode: int | None = None, durable: bool = True
) -> None:
    """Write texts, bytes, or what holds bytes one after the other, to files.

    All of them are complete on disk before the first one takes its name.

    Parameters
    ----------
    files : mapping
        What each file is to hold, by its path.
    mode : int or None
        Permissions of the files; None: those of any new file.
    durable : bool
        Whether the files, and their new names, survive a loss of power from now on. Otherwise, as suits what can be
        made again, the system writes them when it likes: a file may then be found damaged.

    Raises
    ------
    OSError
        A file cannot be written; none has been replaced unless the renaming itself failed.
    """
    with contextlib.ExitStack() as leftovers:
        renames = []
        for path, content in files.items():
            handle, name = _new_file(path.absolute(), _NEW if mode is None else mode)
            leftovers.callback(Path(name).unlink, missing_ok=True)
            with os.fdopen(handle, "wb") as file:
                if mode is not None and hasattr(os, "fchmod"):  # whatever the umask
                    os.fchmod(handle, mode)
                file.writelines(_parts(content))
                if durable:
                    file.flush()
                    _sync(handle)
            renames.append((name, path))
        for name, path in renames:
            os.replace(name, path)
    for folder in {path.absolute().parent for path in files} if durable else ():
        with contextlib.suppress(OSError):  # not every system opens folders, nor every user
            handle = os.open(folder, os.O_RDONLY | _flags("O_DIRECTORY", "O_CLOEXEC"))
            try:
                _sync(handle)
            finally:
                os.close(handle)


def private_mode(folder: Path) -> int:
    """Permissions of a file that nobody else may write to, and that whoever may read the folder may read."""
    return _OWNERS | folder.stat().st_mode & _READABLE


def _new_file(path: Path, mode: int) -> tuple[int, str]:
    """A file beside the path that nobody else has: its descriptor and its name."""
    while True:
        name = str(path.with_name(f".{path.name[:40]}.{os.urandom(8).hex()}{PART}"))
        try:
            return os.open(name, _WRITE, mode), name
        except FileExistsError:
            continue
        except OSError as error:  # the name of a file that is not there yet tells nobody anything
            raise OSError(error.errno, error.strerror, str(path)) from None


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # of file systems that cannot
            raise


def _parts(content: str | bytes | Iterable[Any]) -> Iterable[Any]:
    if isinstance(content, str):
        return [content.encode()]
    return [content] if isinstance(content, bytes) else content
