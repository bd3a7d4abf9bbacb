"""Compiled kernels on disk: one object file per (kernel, tile), stamped with all that its machine code depends on.

A kernel's file and folder are named by all of that (`runtime.code.kernel_files`), so a change of any of it compiles
anew instead of running stale code. Files hold machine code only: nothing is unpickled. They are written whole under a
checksum, and what others could have written is not loaded (`runtime.code.checked_file`). What is not there is looked
for in the package's own packs (`runtime.code.packs`), and then compiled. This module is no part of a stamp: whoever
changes what a file holds must change the folder's name.

In memory a function is freed with the last `Code` that names it, so that a process that meets ever more shapes does
not grow for ever: programs hold theirs, and the latest are kept for the next program.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from autotune.machine.pages import NoExecutableMemory, may_gain_execution
from autotune.signals import interrupts_delayed
from cpuconv.errors import CpuconvError
from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.compiler_lock import lock as _lock
from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.kernel_files import KernelFile
from cpuconv.runtime.code.loading import loader, object_file
from cpuconv.runtime.code.packs import serving
from cpuconv.runtime.code.waiting import Waiting

KEPT = 1024  # functions that are kept though no program holds them, some 50 KB each


class Code:
    """A compiled function, which may be called as long as this object lives.

    Nobody reads its address alone: it is given to what keeps the object alive, or as a C function that does.

    Parameters
    ----------
    address : int
    holds : object
        What the machine code is freed with.

    Attributes
    ----------
    name : str
        `KernelFile.name`.
    ir_hash : str
        `machine_code.hash_of` the LLVM IR that it was compiled from; empty if it was none of ours.
    """

    __slots__ = ("__weakref__", "_address", "_holds", "ir_hash", "name")

    def __init__(self, address: int, holds: Any) -> None:
        self._address, self._holds = address, holds
        self.name = self.ir_hash = ""

    def address_for(self, keeper: list[Any]) -> int:
        """The address, which may be called as long as `keeper` is kept; this object is put into it."""
        keeper.append(self)
        return self._address

    def function(self, prototype: Any) -> Any:
        """A C function of that type (`ctypes.CFUNCTYPE`), which keeps this object."""
        function = prototype(self._address)
        function.code = self
        return function


class Entries:
    """The functions of one kernel by its tile."""

    _latest: collections.deque[Code] = collections.deque(maxlen=KEPT)  # of all kernels

    def __init__(self) -> None:
        self._found: weakref.WeakValueDictionary[Any, Code] = weakref.WeakValueDictionary()

    def get(self, tile: Any, load: Callable[[], Code]) -> Code:
        """The function for `tile`, by `load` if it is not in memory."""
        code = self._found.get(tile)
        if code is None:  # for two threads at once too: they are given one function
            code = self._found[tile] = load()
            self._latest.append(code)
        if (noted := _noted.get()) is not None:
            noted.add(code.name)
        return code


class NotCompiled(LookupError):
    """A kernel that would have to be compiled.

    Attributes
    ----------
    file : KernelFile
    """

    def __init__(self, file: KernelFile) -> None:
        super().__init__(file.name)
        self.file = file


_noted: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("noted", default=None)
_compiles: contextvars.ContextVar[bool] = contextvars.ContextVar("compiles", default=True)


@contextlib.contextmanager
def compiling_nothing(noting: bool = False) -> Iterator[None]:
    """Let this thread's calls raise `NotCompiled` meanwhile where they would compile; `noting` as ever, or nothing."""
    before, noted = _compiles.set(False), _noted.set(_noted.get() if noting else None)
    try:
        yield
    finally:
        _compiles.reset(before)
        _noted.reset(noted)


_asks: contextvars.ContextVar[bool] = contextvars.ContextVar("asks", default=False)


def name_of(kernel: Any, tile: Any) -> str:
    """The name of a kernel's file for `tile`, which is neither loaded nor compiled; empty if it has none."""
    asked = _asks.set(True)
    try:
        with compiling_nothing():
            return str(kernel.entry(tile).name)
    except NotCompiled as error:
        return error.file.name
    finally:
        _asks.reset(asked)


def known_ir_hash(kernel: Any, tile: Any) -> str:
    """`Code.ir_hash` of a kernel in memory, in the cache folder or a pack; empty if it is nowhere, or not told."""
    try:
        with compiling_nothing():
            return str(kernel.entry(tile).ir_hash)
    except NotCompiled:
        return ""


def is_in_memory(file_name: str) -> bool:
    """Whether the kernel of that file's name is in memory."""
    return file_name in _alive


_common: set[str] = set()  # names of what every process needs


@contextlib.contextmanager
def noting() -> Iterator[set[str]]:
    """The names of the functions that this thread asks for meanwhile, and of those that every process needs."""
    names: set[str] = set()
    before = _noted.set(names)
    try:
        yield names
    finally:
        _noted.reset(before)
        names |= _common
        names.discard("")
        if (outer := _noted.get()) is not None:
            outer |= names


def body_of(file_name: str) -> bytes | None:
    """A kernel as it is kept, of the user's cache or of the pack that serves; None if neither has it."""
    kept = kernel_files.named(file_name).read()
    return serving.find(file_name) if kept is None else kept


class Statistics:
    """Counts of this process: kernels compiled, those of them by Numba, loaded from the user's cache, and loaded from a
    pack."""

    compiled = 0
    by_numba = 0
    loaded = 0
    packed = 0


Load = Callable[[bytes, str], Code]
Compiled = tuple[bytes, str, Code]  # object code, symbol, function
"""From an object file's code and the name of its function to that function."""


def load_object(code: bytes, symbol: str) -> Code:
    """The function `symbol` of an object file's `code`, which may name symbols of Numba's.

    Raises
    ------
    Malformed
        The file is damaged.
    CpuconvError
        The system allows this process no memory that holds code.
    """
    return _loaded(code, symbol, "by_engine")


def link_object(code: bytes, symbol: str) -> Code:
    """The same of code that names symbols of the C library at most."""
    return _loaded(code, symbol, "by_linker")


def _loaded(code: bytes, symbol: str, otherwise: str) -> Code:
    try:
        return Code(*loader.load(code, symbol))
    except NoExecutableMemory as error:
        raise CpuconvError(f"A kernel cannot be loaded: {error}.") from error
    except object_file.Unsupported:
        _check_compiler_runs("A kernel must be linked by LLVM")
        from cpuconv.runtime.code.loading import llvm_loader  # imports Numba

        with _lock:
            return Code(*getattr(llvm_loader, otherwise)(code, symbol))


def _check_compiler_runs(what: str) -> None:
    """See that Numba and LLVM may make memory executable.

    Raises
    ------
    CpuconvError
        They may not; the message begins with `what`.
    """
    if not may_gain_execution():
        raise CpuconvError(
            f"{what}, but the system does not let this process make memory executable (MemoryDenyWriteExecute of "
            "systemd, or a policy of SELinux): run the same once without that, so that its kernels are in the cache "
            "folder, or install a wheel with kernel packs."
        )


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Let Python's collector of cycles wait: it walks over all that a compilation makes, again and again, for a quarter
    of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Here(threading.local):
    compiles = ""  # the name of the kernel that this thread compiles


_here = _Here()


@contextlib.contextmanager
def _compiling_once(name: str) -> Iterator[None]:
    """See that a thread compiles one kernel at a time: locks of its own would let it wait for ever, or compile within
    a compiler that is half done."""
    if interrupted := _here.compiles:
        raise CpuconvError(
            f"The kernel {name} cannot be compiled by a signal handler that interrupted the compilation of "
            f"{interrupted}, in the same thread. Make the handler set a flag or an event, and call cpuconv elsewhere; "
            "or compile what it calls before it can be called."
        )
    _here.compiles = name
    try:
        yield
    finally:
        _here.compiles = ""


_INTERRUPTED = "cpuconv: interrupted, and ends when the kernel that is being compiled is done"
_waiting = Waiting()
_alive: weakref.WeakValueDictionary[Any, Code] = weakref.WeakValueDictionary()  # by `KernelFile.name`, if there is one


def load_or_compile(
    name: str, module: str, identity: str, compile_: Callable[[], Compiled], load: Load = load_object
) -> Code:
    """The kernel `name` of `module` specialised as `identity`: one object, whoever asks, as long as somebody keeps it.

    `compile_` gives (object code, symbol, function).

    Raises
    ------
    CpuconvError
        It must be compiled, and the system does not let this process do so; or this thread is compiling another one:
        this is called by a signal handler that interrupted it, which would wait for itself.
    """
    file = kernel_files.find(name, module, identity)
    if _asks.get():
        raise NotCompiled(file)
    key = file.name or (name, module, identity)
    if not identity:
        _common.add(file.name)
    with _lock:
        code = _alive.get(key) or _load(file, load) or _unpacked(file, load)
        if code is not None:
            code.name = file.name
            _alive[key] = code
            return code
    if not _compiles.get():
        raise NotCompiled(file)
    with interrupts_delayed(_INTERRUPTED), _compiling_once(name):
        _check_compiler_runs(f"The kernel {name} must be compiled")
        return _compile(key, file, compile_, load)


def _compile(key: Any, file: KernelFile, compile_: Callable[[], Compiled], load: Load) -> Code:
    # Not under our own lock: another process may take its time, and threads load and fork meanwhile.
    with file.compiling(), _lock:
        code = _alive.get(key) or _load(file, load)
        if code is None:
            where = None if file.path is None or file.trouble else file.path.parent
            with _uncollected(), _waiting.compiling(where):
                content, symbol, code = compile_()
            Statistics.compiled += 1
            file.write(KernelBody(symbol, code.ir_hash, content).to_bytes())
        code.name = file.name
        _alive[key] = code
        return code


def _load(file: KernelFile, load: Load) -> Code | None:
    loaded = _function(file.read(), load)  # None: a file that was damaged or could have been another's is replaced
    Statistics.loaded += loaded is not None
    return loaded


def _unpacked(file: KernelFile, load: Load) -> Code | None:
    loaded = _function(serving.find(file.name), load) if file.name else None
    Statistics.packed += loaded is not None
    return loaded


def _function(body: bytes | None, load: Load) -> Code | None:
    if body is None:
        return None
    symbol, ir_hash, content = KernelBody.of(body)
    try:
        code = load(content, symbol)
    except object_file.Malformed:
        return None
    code.ir_hash = ir_hash
    return code
