"""Cache of compiled kernels: one object file per (kernel, tile) on disk, named by all that its code depends on.

The names of a kernel's file and folder (`runtime.code.kernel_files`) contain hashes of all dependencies. So a change of
any of them recompiles the kernel. Files contain machine code only; nothing is unpickled. They are written atomically
with a checksum, and files that others could have written are not loaded (`runtime.code.checked_file`). Kernels not in
the folder are searched in the package's packs (`runtime.code.packs`), then compiled. This module is not part of a
stamp: a change of the file format must change the folder's name.

A function in memory is freed with the last `Code` that refers to it. So memory stays bounded in a process that uses
ever more shapes. Programs own their functions, and the latest functions stay for the next program.
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
from baselib.signals import interrupts_delayed
from cpuconv.errors import CpuconvError
from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.compiler_lock import lock as _lock
from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.kernel_files import KernelFile
from cpuconv.runtime.code.loading import loader, object_file
from cpuconv.runtime.code.packs import active_pack
from cpuconv.runtime.code.waiting import Waiting

RECENT_FUNCTIONS = 1024  # latest functions that stay in memory without a program, about 50 KB each


class Code:
    """A compiled function, callable while this object exists.

    The address is never read alone: it is passed on with a reference to this object, or as a C function with one.

    Parameters
    ----------
    address : int
    owner : object
        The owner of the machine code's memory.

    Attributes
    ----------
    name : str
        `KernelFile.name`.
    ir_hash : str
        `machine_code.hash_of` the LLVM IR that it was compiled from; empty for code that is not from our IR.
    """

    __slots__ = ("__weakref__", "_address", "_owner", "ir_hash", "name")

    def __init__(self, address: int, owner: Any) -> None:
        self._address, self._owner = address, owner
        self.name = self.ir_hash = ""

    def address_for(self, keeper: list[Any]) -> int:
        """Return the address, valid while `keeper` exists; appends this object to `keeper`."""
        keeper.append(self)
        return self._address

    def function(self, prototype: Any) -> Any:
        """Return a C function of this type (`ctypes.CFUNCTYPE`) that keeps this object alive."""
        function = prototype(self._address)
        function.code = self
        return function


class Entries:
    """The functions of one kernel, by tile."""

    _latest: collections.deque[Code] = collections.deque(maxlen=RECENT_FUNCTIONS)  # shared by all kernels

    def __init__(self) -> None:
        self._found: weakref.WeakValueDictionary[Any, Code] = weakref.WeakValueDictionary()

    def get(self, tile: Any, load: Callable[[], Code]) -> Code:
        """Return the function for `tile`; calls `load` if it is not in memory."""
        code = self._found.get(tile)
        if code is None:  # concurrent threads may both load: `load` returns the same function
            code = self._found[tile] = load()
            self._latest.append(code)
        if (recorded := _recorded.get()) is not None:
            recorded.add(code.name)
        return code


class NotCompiled(LookupError):
    """A kernel would have to be compiled.

    Attributes
    ----------
    file : KernelFile
    """

    def __init__(self, file: KernelFile) -> None:
        super().__init__(file.name)
        self.file = file


_recorded: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("recorded", default=None)
_compiles: contextvars.ContextVar[bool] = contextvars.ContextVar("compiles", default=True)


@contextlib.contextmanager
def without_compiling(record: bool = False) -> Iterator[None]:
    """Raise `NotCompiled` instead of compiling in this thread's calls; record names as before only if `record`."""
    before, recorded = _compiles.set(False), _recorded.set(_recorded.get() if record else None)
    try:
        yield
    finally:
        _compiles.reset(before)
        _recorded.reset(recorded)


_names_only: contextvars.ContextVar[bool] = contextvars.ContextVar("asks", default=False)


def name_of(kernel: Any, tile: Any) -> str:
    """Return the file name of a kernel for `tile` without loading or compiling it; empty if it has none."""
    before = _names_only.set(True)
    try:
        with without_compiling():
            return str(kernel.entry(tile).name)
    except NotCompiled as error:
        return error.file.name
    finally:
        _names_only.reset(before)


def known_ir_hash(kernel: Any, tile: Any) -> str:
    """Return `Code.ir_hash` of a kernel in memory, the cache folder or a pack; empty if not found or unknown."""
    try:
        with without_compiling():
            return str(kernel.entry(tile).ir_hash)
    except NotCompiled:
        return ""


def is_in_memory(file_name: str) -> bool:
    """Whether the kernel with this file name is in memory."""
    return file_name in _alive


_common: set[str] = set()  # file names of the kernels that every process needs


@contextlib.contextmanager
def recording_names() -> Iterator[set[str]]:
    """Collect the names of the functions that this thread requests here, and of those that every process needs."""
    names: set[str] = set()
    before = _recorded.set(names)
    try:
        yield names
    finally:
        _recorded.reset(before)
        names |= _common
        names.discard("")
        if (outer := _recorded.get()) is not None:
            outer |= names


def body_of(file_name: str) -> bytes | None:
    """Return a kernel's file content, from the user's cache or the active pack; None if neither has it."""
    kept = kernel_files.named(file_name).read()
    return active_pack.find(file_name) if kept is None else kept


class Statistics:
    """Counters of this process: kernels compiled, those compiled by Numba, loaded from the user's cache, and loaded
    from a pack."""

    compiled = 0
    by_numba = 0
    loaded = 0
    packed = 0


Load = Callable[[bytes, str], Code]
Compiled = tuple[bytes, str, Code]  # object code, symbol, function
"""Result of compiling a kernel."""


def load_object(code: bytes, symbol: str) -> Code:
    """Load the function `symbol` from an object file, which may refer to Numba's symbols.

    Raises
    ------
    Malformed
        The file is damaged.
    CpuconvError
        The system denies this process executable memory.
    """
    return _loaded(code, symbol, "by_engine")


def link_object(code: bytes, symbol: str) -> Code:
    """Load the function `symbol` from an object file that refers at most to symbols of the C library."""
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
    """Check that Numba and LLVM may make memory executable.

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
    """Disable the cyclic garbage collector: its repeated scans of the compiler's objects take a quarter of the
    compile time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _ThreadState(threading.local):
    compiles = ""  # name of the kernel that this thread is compiling


_thread = _ThreadState()


@contextlib.contextmanager
def _compiling_once(name: str) -> Iterator[None]:
    """Raise if this thread is already compiling a kernel: it would deadlock on its own locks, or re-enter an
    unfinished compiler."""
    if interrupted := _thread.compiles:
        raise CpuconvError(
            f"The kernel {name} cannot be compiled by a signal handler that interrupted the compilation of "
            f"{interrupted}, in the same thread. Make the handler set a flag or an event, and call cpuconv elsewhere; "
            "or compile what it calls before it can be called."
        )
    _thread.compiles = name
    try:
        yield
    finally:
        _thread.compiles = ""


_INTERRUPTED = "cpuconv: interrupted, and ends when the kernel that is being compiled is done"
_waiting = Waiting()
_alive: weakref.WeakValueDictionary[Any, Code] = weakref.WeakValueDictionary()  # by `KernelFile.name`, if not empty


def load_or_compile(
    name: str, module: str, identity: str, compile_: Callable[[], Compiled], load: Load = load_object
) -> Code:
    """Return the kernel `name` of `module` specialised as `identity`: the same object for all callers while it exists.

    `compile_` returns (object code, symbol, function).

    Raises
    ------
    CpuconvError
        The kernel must be compiled, and the system forbids it. Or a signal handler calls this while it interrupts
        a compilation in the same thread, which would deadlock.
    """
    file = kernel_files.find(name, module, identity)
    if _names_only.get():
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
    # Not under our own lock: another process may take long to compile, and threads must load and fork meanwhile.
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
    loaded = _function(file.read(), load)  # None: a damaged file, or one that others could write, is replaced
    Statistics.loaded += loaded is not None
    return loaded


def _unpacked(file: KernelFile, load: Load) -> Code | None:
    loaded = _function(active_pack.find(file.name), load) if file.name else None
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
