"""The lock for compiling and loading code; a fork waits until no thread is in a compiler.

A compiler is ours, Numba's or LLVM's; other threads may use the latter two without us.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

from baselib.locks import fork_waits_for

lock = threading.RLock()


def _of_compilers() -> Iterator[Any]:
    """Yield the locks of Numba and llvmlite in their acquisition order, of the modules that are imported."""
    compiling, registry, binding = (
        sys.modules.get(name) for name in ("numba.core.compiler_lock", "numba.core.registry", "llvmlite.binding.ffi")
    )
    made_once = vars(getattr(registry, "CPUTarget", object)).values()
    yield from filter(
        None,
        (
            getattr(getattr(compiling, "global_compiler_lock", None), "_lock", None),
            *(getattr(each, "_lock", None) for each in made_once),  # locks of Numba's lazily made objects
            getattr(getattr(getattr(binding, "lib", None), "_lock", None), "_lock", None),
        ),
    )


fork_waits_for(lock, _of_compilers)
