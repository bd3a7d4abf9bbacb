"""What was imported: the source files of the package as they lay there at its import, or the release that it is of.

`cpuconv/__init__.py` imports this module before any other. A file may be replaced while the process runs, such as by
`pip install -U`: then it no longer tells what the code in memory does.
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
_BUILT_ON = ("autotune", "layouts")  # packages of the same wheel
_HASHED = f"{_NAME}/runtime/kernel.py"  # or .pyc: a RECORD that has no hash of it tells nothing of our code

State = tuple[int, int, int, int, int]


def at_import() -> dict[str, State]:
    """The source files of the package that lay there when it was imported, by path; none of one without them."""
    return _AT_IMPORT


def is_unchanged(paths: Iterable[str | Path]) -> bool:
    """Whether these source files of the package are those that lay there when it was imported."""
    try:
        return all(_AT_IMPORT.get(os.fspath(each)) == _state(os.stat(each)) for each in paths)
    except OSError:
        return False


@functools.cache
def files_state() -> str | None:
    """A hash of what source files there are in this package and those that it is built on, of their sizes and of their
    times in seconds, which an image of a container keeps; of a package without source files, of its release. None if
    nothing tells.
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
    """Version and RECORD of this package as it is installed now; None if nothing tells.

    RECORD holds hashes of all files that the package was installed with, those that were left out later as well.
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
    """The paths of the source files in a folder and those below it."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    yield entry.path
                elif entry.is_dir() and entry.name != "__pycache__":
                    yield from source_files(entry.path)
    except OSError:
        return  # an archive has no folders


def _files(folder: str) -> Iterator[tuple[str, State]]:
    for path in source_files(folder):
        with contextlib.suppress(OSError):  # it is gone
            yield path, _state(os.stat(path))


_AT_IMPORT = dict(_files(str(ROOT)))
RELEASE = None if _AT_IMPORT else release()
"""`release()` at the import, of a package without source files."""
