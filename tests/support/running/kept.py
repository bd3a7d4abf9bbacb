"""The folder in which compiled kernels outlive a session of tests; CPUCONV_TEST_CACHE names another one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

MAX_BYTES = 512 << 20  # of kept files; a session makes some 50 MB


def kept() -> Path | None:
    """The folder that outlives sessions; None outside of a virtual environment, where nothing is kept."""
    if named := os.environ.get("CPUCONV_TEST_CACHE"):
        return Path(named).absolute()
    return Path(sys.prefix) / "cpuconv-tests" if sys.prefix != sys.base_prefix else None


def prune(folder: Path, most: int = MAX_BYTES) -> None:
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
