"""Cached hashes of kernel calls from earlier processes, as emitting the IR of kernels takes a tenth of a second.

They are stored in one file of the cache folder, by a key of their sources, and written at the end of a process. The
file is read under the same rules as kernels (`checked_file`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
from collections.abc import Callable

from autotune.machine.device import fingerprint
from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.sources import parsed

NAME = "hashes"
MAX_HASHES = 8192  # stored hashes
_MAX_FILE_BYTES = 1 << 24


def stored_hash(key: str, compute: Callable[[], str]) -> str:
    """The hash with this key on this device: cached, or computed now."""
    known = _known_hashes()
    found = known.get(f"{fingerprint().key} {key}")
    if found is None:
        found = known[f"{fingerprint().key} {key}"] = compute()
        _register()
    return found


def write() -> None:
    """Store the hashes of this process for later ones."""
    path = parsed.cache_path()
    if path is None:
        return
    path = path.with_name(NAME)
    text = json.dumps(dict([*(_read() | _known_hashes()).items()][-MAX_HASHES:]))
    with contextlib.suppress(OSError):  # the next process then computes them again
        checked_file.write(path, text.encode())


@functools.cache
def _register() -> None:
    atexit.register(write)


@functools.cache
def _known_hashes() -> dict[str, str]:
    return _read()


def _read() -> dict[str, str]:
    path = parsed.cache_path()
    text = None if path is None else checked_file.read(path.with_name(NAME), _MAX_FILE_BYTES)
    try:
        known = json.loads(text or b"{}")
        return {str(key): str(value) for key, value in known.items()}
    except (ValueError, AttributeError):  # the file is from another version
        return {}
