"""The lock under which code is compiled and loaded; a fork waits until no thread is in a compiler.

That is ours, or Numba's or LLVM, which other threads may use without us.
"""

from __future__ import annotations

import threading

from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUTarget

from autotune.locks import fork_waits_for

lock = threading.RLock()

fork_waits_for(  # in the order in which a thread takes them
    lock,
    global_compiler_lock._lock,
    *(each._lock for each in vars(CPUTarget).values() if hasattr(each, "_lock")),  # of what Numba makes at first use
    ffi.lib._lock._lock,
)
