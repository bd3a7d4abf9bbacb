"""Paths of the cache folder and the store."""

from __future__ import annotations

import os
from pathlib import Path

from baselib.ownership import VARIABLE, fault


class NoFolderError(OSError):
    """There is no usable cache folder; the message gives the reason, and how to name one."""


def cache_folder() -> Path:
    """Return the cache folder: the variable CPUCONV_CACHE_DIR, else the user's cache folder. It may not exist yet.

    Raises
    ------
    NoFolderError
        The user has no home folder, such as a container's user without a passwd entry; or other users may write to the
        folder.
    """
    chosen = os.environ.get(VARIABLE)
    try:
        folder = Path(chosen).expanduser().absolute() if chosen else _users()
    except (RuntimeError, OSError) as error:
        raise NoFolderError(_TROUBLE.format(error)) from error
    if not folder.is_absolute():  # older versions of platformdirs return "~/..." without a home folder
        raise NoFolderError(_TROUBLE.format(f"'{folder}' is not an absolute path"))
    try:
        found = fault(folder)
    except OSError:  # it is created later, or opening a file in it reports the error
        found = None
    if found is not None:
        raise NoFolderError(found)
    return folder


def is_cached(path: Path) -> bool:
    """Whether a file is directly in the cache folder."""
    try:
        return path.absolute().parent == cache_folder()
    except OSError:
        return False


def store_path() -> Path:
    """Return the path of the store in the cache folder; raises NoFolderError."""
    return cache_folder() / "autotune.sqlite"


def _users() -> Path:
    import platformdirs  # the import takes 4 ms

    return Path(platformdirs.user_cache_dir("cpuconv"))


_TROUBLE = f"there is no usable cache folder ({{}}); name one in {VARIABLE}"
