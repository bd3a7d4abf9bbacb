"""Compiling for a CPU that this process does not run on: what was compiled is kept, and nothing of it is ever called.

Compiled code is entered in few places: the launcher, which goes through the rows of a program, and the lives and the
pauses of threads. All of them take a C function from `Code.function`; here it is one of the C library that does
nothing. Memory that kernels would have filled is zero instead of undefined, so that whoever reads it decides alike on
every machine, and so do counts of threads.

This is for the processes of `bench.packs`: nothing in the package knows of it, and it cannot be undone.
"""

from __future__ import annotations

import ctypes
import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.packs import abroad
from bench.packs.wanted import THREADS
from cpuconv.conv.remembering.fingerprint import Fingerprinter
from cpuconv.isa import features
from cpuconv.kernels.emit import product
from cpuconv.memory import aligned
from cpuconv.runtime import threads
from cpuconv.runtime.code import cache
from cpuconv.runtime.code.packs.cpu_classes import CpuClass


def begin(cpu: CpuClass) -> None:
    """Run nothing from now on; to be called before anything is compiled."""
    abroad.begin(cpu)
    read = Fingerprinter._read
    granted = "amx-tile" in cpu.features
    others: tuple[tuple[Any, str, Any], ...] = (
        (cache.Code, "function", _idle),
        (aligned, "np", SimpleNamespace(**{**vars(np), "empty": np.zeros})),
        (threads, "allowed_cores", lambda: max(THREADS)),
        (Fingerprinter, "_read", lambda self, array, threads: _digest(read(self, array, threads), array)),
        (features, "tiles_granted", lambda: granted),
        (product, "tiles_granted", lambda: granted),
    )
    for owner, name, other in others:
        setattr(owner, name, other)


def _idle(code: cache.Code, prototype: Any) -> Any:
    function = prototype(ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value)
    function.code = code
    return function


def _digest(head: bytes, array: np.ndarray) -> bytes:
    """What tells arrays apart, where the kernel that is asked for has read nothing."""
    return hashlib.blake2b(head + array.tobytes(), digest_size=16).digest()
