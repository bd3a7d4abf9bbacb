"""State of the package's source files at import, or its release if there are no source files.

`cpuconv/__init__.py` imports this module before any other. A file may be replaced while the process runs, such as by
`pip install -U`: then it no longer describes the code in memory.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
_NAME = ROOT.name
_BUILT_ON = ("autotune", "baselib", "layouts")  # other packages of the same wheel
_HASHED = f"{_NAME}/runtime/kernel.py"  # or .pyc: a RECORD without its hash does not identify our code

State = tuple[int, int, int, int, int]


def at_import() -> dict[str, State]:
    """State of the package's source files at its import, by path; empty without source files."""
    return _AT_IMPORT


def is_unchanged(paths: Iterable[str | Path]) -> bool:
    """Whether these source files of the package have not changed since its import."""
    try:
        return all(_AT_IMPORT.get(os.fspath(each)) == _state(os.stat(each)) for each in paths)
    except OSError:
        return False


@functools.cache
def files_state() -> str | None:
    """Hash the paths, sizes and modification times of the source files of this package and of those it is built on.

    Times are in whole seconds, which container images preserve. Without source files, hash the release; None if that
    is unknown.
    """
    if not _AT_IMPORT:
        return RELEASE and hashlib.sha256(RELEASE.encode()).hexdigest()
    beside = [state for name in _BUILT_ON for state in _files(str(ROOT.parent / name))]
    above = len(str(ROOT.parent)) + 1
    told = [
        f"{path[above:]} {size} {changed // 10**9}\n"
        for path, (_, _, size, changed, _) in sorted([*_AT_IMPORT.items(), *beside])
    ]
    return hashlib.sha256("".join(told).encode()).hexdigest()


def release() -> str | None:
    """Version and RECORD of this package as installed now; None if unknown.

    RECORD holds hashes of all files that were installed with the package, including files deleted later.
    """
    from importlib import metadata  # takes 20 ms

    try:
        found = metadata.distribution(_NAME)
        record = found.read_text("RECORD") or ""
        place = Path(str(found.locate_file(_NAME)))
    except (metadata.PackageNotFoundError, OSError, UnicodeError):
        return None
    is_hashed = any(line.startswith(_HASHED) and "sha256=" in line for line in record.splitlines())
    return f"{found.version}\n{record}" if is_hashed and place.resolve() == ROOT else None


def _state(status: os.stat_result) -> State:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def source_files(folder: str) -> Iterator[str]:
    """The paths of the source files in a folder and its subfolders."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    yield entry.path
                elif entry.is_dir() and entry.name != "__pycache__":
                    yield from source_files(entry.path)
    except OSError:
        return  # the package is in an archive, without folders


def _files(folder: str) -> Iterator[tuple[str, State]]:
    for path in source_files(folder):
        with contextlib.suppress(OSError):  # the file was deleted meanwhile
            yield path, _state(os.stat(path))


_AT_IMPORT = dict(_files(str(ROOT)))
RELEASE = None if _AT_IMPORT else release()
"""`release()` at import, for a package without source files."""
