"""Permissions of the cache folder. Files that another user could have written are neither executed nor read.

POSIX owners and modes decide; other systems keep a user's cache folder private. Root is trusted: root could also change
the interpreter, and container images contain kernels that root compiled for other users.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

VARIABLE = "CPUCONV_CACHE_DIR"  # environment variable with the cache folder
PRIVATE = 0o755  # mode of created folders: not writable by others, whatever the umask
_ROOT = 0


def is_ours(status: os.stat_result) -> bool:
    """Whether only this user and root may write to a file or folder."""
    return not hasattr(os, "geteuid") or (_is_owned(status) and not _is_open(status))


def claim(*folders: Path) -> str | None:
    """Create the folders, each inside the previous one, where they are missing.

    Returns
    -------
    str | None
        The first `fault` of one of them, if any.

    Raises
    ------
    OSError
        A folder cannot be created.
    """
    for each in folders:
        each.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if (found := fault(each)) is not None:
            return found
    return None


def fault(folder: Path) -> str | None:
    """Return why other users may have written to a folder, with a remedy; None if they cannot.

    Raises
    ------
    OSError
        The folder does not exist.
    """
    status = folder.stat()
    if is_ours(status):
        return None
    if not _is_owned(status):
        return f"{folder} belongs to another user (uid {status.st_uid}); name a folder of your own in {VARIABLE}"
    import shlex

    return f"others may write to {folder}; 'chmod go-w {shlex.quote(str(folder))}' mends it"


def _is_owned(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), _ROOT)


def _is_open(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
