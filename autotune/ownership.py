"""Who may write to the cache folder and what is in it. What another user could have written is neither run nor read.

POSIX owners and modes decide; other systems keep a user's cache folder private. Root is trusted: it could as well
change the interpreter, and images of containers hold kernels that root has compiled for whoever runs them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

VARIABLE = "CPUCONV_CACHE_DIR"  # names the cache folder
PRIVATE = 0o755  # of folders that are made: whatever the umask, nobody else writes to them
_ROOT = 0


def is_ours(status: os.stat_result) -> bool:
    """Whether nobody but this user and root may write to a file or folder."""
    return not hasattr(os, "geteuid") or (_is_owned(status) and not _is_open(status))


def claim(*folders: Path) -> str | None:
    """Make the folders, each inside the one before, where they are missing.

    Returns
    -------
    str | None
        The first `fault` of one of them, if any.

    Raises
    ------
    OSError
        A folder cannot be made.
    """
    for each in folders:
        each.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if (found := fault(each)) is not None:
            return found
    return None


def fault(folder: Path) -> str | None:
    """Why other users may have written to a folder, and how to mend that; None if they cannot.

    Raises
    ------
    OSError
        There is no such folder.
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
