"""Stamps that earlier processes have computed: a start that finds its own reads no sources.

They are kept in the cache folder, in one file, for files of the package that have not changed since: each is told by
where it lies, its inode, its size and its times, as they were at the import. Where one changed a moment before nothing
is kept, as another change would not show in its times. What is kept is read under the rules of kernels
(`checked_file`). A first start computes some thirty, so several are written at once, and the last ones at the end.
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
MOST = 256  # that are kept
_LATELY = 2 * 10**9  # nanoseconds: times of files may be as coarse
_AT_ONCE = 8  # that are written, at least, but at the end; as many again as are kept


class Kept(NamedTuple):
    """A stamp, and the source files that it was computed from."""

    stamp: str
    paths: tuple[str, ...]


def find(modules: Collection[str]) -> Kept | None:
    """The stamp of these modules, if it is kept; its files may have changed since the import."""
    return _kept().get(" ".join(modules))


def keep(modules: Collection[str], stamp: str, paths: Collection[str]) -> None:
    """Keep the stamp of modules whose files have not changed since the import."""
    state, path = _state(), parsed.kept_path()
    if state is None or path is None:
        return
    _register()
    name = " ".join(modules)
    unwritten = _unwritten.setdefault((path.with_name(NAME), state), {})
    _kept()[name] = unwritten[name] = Kept(stamp, tuple(paths))
    if len(unwritten) >= max(_AT_ONCE, len(_kept()) - len(unwritten)):
        write()


_unwritten: dict[tuple[Path, str], dict[str, Kept]] = {}  # by file, and what it says of the sources


def write() -> None:
    """Write those that are kept and are in no file yet."""
    while _unwritten:
        (path, state), stamps = _unwritten.popitem()
        known = {**_told(checked_file.read(path, parsed.MOST_BYTES), state), **stamps}
        text = json.dumps({"state": state, "stamps": dict([*known.items()][-MOST:])})
        with contextlib.suppress(OSError):  # then the next process computes them again
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
    """What tells the source files from others, as they were at the import; None where times do not."""
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
        return {}  # of another version
