"""Cache of stamps across processes: a process that finds its stamp reads no sources.

The cache is one file in the cache folder. It is valid while the package's source files are unchanged: each is
identified by path, inode, size and times, as of the import. If a file changed just before, nothing is cached, as a
further change might not change its times. Reading follows the rules of kernel files (`checked_file`). A first process
computes about 30 stamps, so several are written together, and the last ones at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from cpuconv import origin
from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.sources import parsed

NAME = "stamps"
MOST = 256  # max. cached stamps
_LATELY = 2 * 10**9  # coarsest resolution of file times, in nanoseconds
_AT_ONCE = 8  # min. stamps per write, except at exit; also at least as many as the file has


class Kept(NamedTuple):
    """A stamp, and the paths of the source files that it was computed from."""

    stamp: str
    paths: tuple[str, ...]


def find(modules: Collection[str]) -> Kept | None:
    """Return the cached stamp of these modules, if any; the files may have changed since the import."""
    return _kept().get(" ".join(modules))


def keep(modules: Collection[str], stamp: str, paths: Collection[str]) -> None:
    """Cache the stamp of modules whose files have not changed since the import."""
    state, path = _state(), parsed.kept_path()
    if state is None or path is None:
        return
    _register()
    name = " ".join(modules)
    unwritten = _unwritten.setdefault((path.with_name(NAME), state), {})
    _kept()[name] = unwritten[name] = Kept(stamp, tuple(paths))
    if len(unwritten) >= max(_AT_ONCE, len(_kept()) - len(unwritten)):
        write()


_unwritten: dict[tuple[Path, str], dict[str, Kept]] = {}  # by cache file and state of the sources


def write() -> None:
    """Write the stamps that are not in the file yet."""
    while _unwritten:
        (path, state), stamps = _unwritten.popitem()
        known = {**_told(checked_file.read(path, parsed.MOST_BYTES), state), **stamps}
        text = json.dumps({"state": state, "stamps": dict([*known.items()][-MOST:])})
        with contextlib.suppress(OSError):  # the next process computes them again
            checked_file.write(path, text.encode())


@functools.cache
def _register() -> None:
    atexit.register(write)


@functools.cache
def _kept() -> dict[str, Kept]:
    state, path = _state(), parsed.kept_path()
    if state is None or path is None:
        return {}
    return _told(checked_file.read(path.with_name(NAME), parsed.MOST_BYTES), state)


@functools.cache
def _state() -> str | None:
    """Return a hash that identifies the source files as of the import; None if their times are too recent."""
    states = origin.at_import()
    latest = max((max(state[-2:]) for state in states.values()), default=None)
    if latest is None or latest + _LATELY > time.time_ns():
        return None
    return hashlib.sha256(repr(sorted(states.items())).encode()).hexdigest()


def _told(text: bytes | None, state: str) -> dict[str, Kept]:
    if text is None:
        return {}
    try:
        data: Mapping[str, object] = json.loads(text)
        stamps = data["stamps"] if data["state"] == state else {}
        assert isinstance(stamps, dict)
        return {name: Kept(str(stamp), tuple(map(str, paths))) for name, (stamp, paths) in stamps.items()}
    except (ValueError, TypeError, KeyError, AssertionError):
        return {}  # written by another version
