"""Compiled kernels on disk: one object file per (kernel, tile), stamped with all that its machine code depends on.

A kernel's name covers the sources that it is made from (`runtime.stamp`), its folder the versions of Numba and
llvmlite and the target CPU with its features, so a change of any of them compiles anew instead of running stale code.
Files are written whole and renamed into place, carry a checksum, and hold machine code only: nothing is unpickled.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba

from autotune.paths import cache_folder
from cpuconv.errors import CpuconvWarning
from cpuconv.runtime.stamp import stamp
from cpuconv.runtime.target import target, target_machine

LOCK_SECONDS = 120  # a compile takes about a second; a lock held longer belongs to a stuck process
_lock = threading.RLock()
_engines: list[llvm.ExecutionEngine] = []  # one an object file: all call their function by the same name
_DIGEST = hashlib.sha256().digest_size


class Statistics:
    """Counts of this process: kernels compiled, and kernels loaded from disk."""

    compiled = 0
    loaded = 0


@functools.lru_cache(maxsize=1)
def folder() -> tuple[Path, bool]:
    """Where kernels of this target are kept, and whether new ones can be written there (one warning if not)."""
    versions = "\n".join((repr(target()), numba.__version__, llvmlite.__version__))
    place = cache_folder() / "kernels" / hashlib.sha256(versions.encode()).hexdigest()[:16]
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return place, True
    except OSError as error:
        warnings.warn(f"kernels are not cached on disk: {error}", CpuconvWarning, stacklevel=2)
        return place, False


def load_object(code: bytes, symbol: str) -> int:
    """Address of `symbol` in an object file's `code`, loaded for the life of the process."""
    with _lock:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append(engine)
        return engine.get_function_address(symbol)


def load_or_compile(name: str, module: str, identity: str, compile_: Callable[[], tuple[bytes, str, int]]) -> int:
    """Address of the kernel `name` of `module` specialised as `identity`.

    `compile_` gives (object code, symbol, address).
    """
    place, writable = folder()
    digest = hashlib.sha256("\n".join((name, stamp(module), identity)).encode()).hexdigest()[:20]
    path = place / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{digest}.o"
    with _lock:
        address = _load(path)
        if address is not None:
            return address
        if not writable:
            Statistics.compiled += 1
            return compile_()[2]
        from filelock import FileLock, Timeout  # costs 0.15 s to import, needed only to compile

        guard = FileLock(f"{path}.lock")
        try:
            guard.acquire(timeout=LOCK_SECONDS)
        except (Timeout, OSError):
            guard = None  # compile for ourselves: slower, never wrong
        try:
            address = _load(path)
            if address is None:
                code, symbol, address = compile_()
                Statistics.compiled += 1
                _store(path, code, symbol)
            return address
        finally:
            if guard is not None:
                guard.release()


def _load(path: Path) -> int | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, body = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        return None  # torn or damaged: compiled again and replaced
    symbol, _, code = body.partition(b"\0")
    address = load_object(code, symbol.decode())
    Statistics.loaded += 1
    return address


def _store(path: Path, code: bytes, symbol: str) -> None:
    body = symbol.encode() + b"\0" + code
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        os.replace(temporary, path)
    except OSError as error:
        warnings.warn(f"kernel {path.name} is not cached on disk: {error}", CpuconvWarning, stacklevel=2)
