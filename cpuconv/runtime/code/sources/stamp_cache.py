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
MAX_STAMPS = 256  # max. cached stamps
_TIME_RESOLUTION = 2 * 10**9  # coarsest resolution of file times, in nanoseconds
_MIN_WRITE = 8  # min. stamps per write, except at exit; also at least as many as the file has


class CachedStamp(NamedTuple):
    """A stamp, and the paths of the source files that it was computed from."""

    stamp: str
    paths: tuple[str, ...]


def find(modules: Collection[str]) -> CachedStamp | None:
    """Return the cached stamp of these modules, if any; the files may have changed since the import."""
    return _cached().get(" ".join(modules))


def put(modules: Collection[str], stamp: str, paths: Collection[str]) -> None:
    """Cache the stamp of modules whose files have not changed since the import."""
    state, path = _state(), parsed.cache_path()
    if state is None or path is None:
        return
    _register()
    name = " ".join(modules)
    unwritten = _unwritten.setdefault((path.with_name(NAME), state), {})
    _cached()[name] = unwritten[name] = CachedStamp(stamp, tuple(paths))
    if len(unwritten) >= max(_MIN_WRITE, len(_cached()) - len(unwritten)):
        write()


_unwritten: dict[tuple[Path, str], dict[str, CachedStamp]] = {}  # by cache file and state of the sources


def write() -> None:
    """Write the stamps that are not in the file yet."""
    while _unwritten:
        (path, state), stamps = _unwritten.popitem()
        known = {**_parse(checked_file.read(path, parsed.MAX_BYTES), state), **stamps}
        text = json.dumps({"state": state, "stamps": dict([*known.items()][-MAX_STAMPS:])})
        with contextlib.suppress(OSError):  # the next process computes them again
            checked_file.write(path, text.encode())


@functools.cache
def _register() -> None:
    atexit.register(write)


@functools.cache
def _cached() -> dict[str, CachedStamp]:
    state, path = _state(), parsed.cache_path()
    if state is None or path is None:
        return {}
    return _parse(checked_file.read(path.with_name(NAME), parsed.MAX_BYTES), state)


@functools.cache
def _state() -> str | None:
    """Return a hash that identifies the source files as of the import; None if their times are too recent."""
    states = origin.at_import()
    latest = max((max(state[-2:]) for state in states.values()), default=None)
    if latest is None or latest + _TIME_RESOLUTION > time.time_ns():
        return None
    return hashlib.sha256(repr(sorted(states.items())).encode()).hexdigest()


def _parse(text: bytes | None, state: str) -> dict[str, CachedStamp]:
    if text is None:
        return {}
    try:
        data: Mapping[str, object] = json.loads(text)
        stamps = data["stamps"] if data["state"] == state else {}
        assert isinstance(stamps, dict)
        return {name: CachedStamp(str(stamp), tuple(map(str, paths))) for name, (stamp, paths) in stamps.items()}
    except (ValueError, TypeError, KeyError, AssertionError):
        return {}  # written by another version
