"""Where the tests of a session, and the processes that they start, keep what they compile and store.

Stores last as long as the session. Kernels are kept in the environment that the tests run in, stamped as ever, so that
the next session does not compile them again; CPUCONV_TEST_CACHE names another folder for them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

MOST_BYTES = 512 << 20  # of kept files; a session makes some 50 MB
CACHE = Path(tempfile.mkdtemp(prefix="cpuconv-tests-"))


def kept() -> Path | None:
    """The folder that outlives sessions; None outside of a virtual environment, where nothing is kept."""
    if named := os.environ.get("CPUCONV_TEST_CACHE"):
        return Path(named).absolute()
    return Path(sys.prefix) / "cpuconv-tests" if sys.prefix != sys.base_prefix else None


def link(folder: Path | None) -> None:
    """Have kernels of the session's cache be in that folder."""
    if folder is None:
        return
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    (CACHE / "kernels").symlink_to(folder / "kernels", target_is_directory=True)


def prune(folder: Path, most: int = MOST_BYTES) -> None:
    """Delete the files that were not used for longest, until no more than `most` bytes are left."""
    files = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # sessions at the same time delete too
            if path.is_file():
                found = path.stat()
                files.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    size = sum(each for _, each, _ in files)
    for _, each, path in sorted(files):
        if size <= most:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            size -= each
