"""Dry runs: compile for a CPU other than this machine's and store the code, but never call it.

Compiled code is entered in few places: the launcher, which runs the rows of a program, and the main loops and waits of
threads. All of them get a C function from `Code.function`; here it is a harmless function of the C library. Memory that
kernels would fill is zero instead of undefined, and the number of threads is fixed, so that builds do not depend on the
machine.

This is for the processes of `bench.packs`: the package does not depend on it, and it cannot be undone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.packs.contents import THREADS
from cpuconv.conv.caches.fingerprint import Fingerprinter
from cpuconv.isa import features
from cpuconv.kernels.emit import product
from cpuconv.memory import aligned
from cpuconv.runtime import target, threads
from cpuconv.runtime.code import cache
from cpuconv.runtime.code.loading import loader
from cpuconv.runtime.code.packs.cpu_classes import CpuClass


def begin(cpu: CpuClass) -> None:
    """Run no compiled code from now on; call it before anything is compiled."""
    _cross_compile(cpu)
    read = Fingerprinter._read
    granted = "amx-tile" in cpu.features
    others: tuple[tuple[Any, str, Any], ...] = (
        (cache.Code, "function", _idle),
        (aligned, "np", SimpleNamespace(**{**vars(np), "empty": np.zeros})),
        (threads, "allowed_cores", lambda: max(THREADS)),
        (Fingerprinter, "_read", lambda self, array, threads: _digest(read(self, array, threads), array)),
        (features, "amx_permitted", lambda: granted),
        (product, "amx_permitted", lambda: granted),
    )
    for owner, name, other in others:
        setattr(owner, name, other)


def _cross_compile(cpu: CpuClass) -> None:
    """Generate code for the architecture of a class; it is loaded into memory, but never called.

    Kernels need no changes: the functions that return the target (`runtime.target`, llvmlite's triples) return the
    other one.
    """
    own = platform.machine()
    if cpu.machine == own:
        return
    import llvmlite.binding as llvm

    triple = target._TRIPLES[cpu.machine]
    target._TRIPLES[own] = triple
    loader._MACHINES[own] = loader._MACHINES[cpu.machine]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = llvm.get_default_triple = lambda: triple
    llvm.Target.from_default_triple = functools.partial(llvm.Target.from_triple, triple)


def _idle(code: cache.Code, prototype: Any) -> Any:
    function = prototype(ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value)
    function.code = code
    return function


def _digest(head: bytes, array: np.ndarray) -> bytes:
    """Hash an array in NumPy, because the fingerprint kernel does not run."""
    return hashlib.blake2b(head + array.tobytes(), digest_size=16).digest()
