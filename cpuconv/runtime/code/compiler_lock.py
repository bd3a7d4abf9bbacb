"""The lock under which code is compiled and loaded; a fork waits until no thread is in a compiler.

That is ours, or Numba's or LLVM, which other threads may use without us.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

from autotune.locks import fork_waits_for

lock = threading.RLock()


def _of_compilers() -> Iterator[Any]:
    """The locks of Numba and llvmlite in the order in which a thread takes them, as far as they are imported."""
    compiling, registry, binding = (
        sys.modules.get(name) for name in ("numba.core.compiler_lock", "numba.core.registry", "llvmlite.binding.ffi")
    )
    made_once = vars(getattr(registry, "CPUTarget", object)).values()
    yield from filter(
        None,
        (
            getattr(getattr(compiling, "global_compiler_lock", None), "_lock", None),
            *(getattr(each, "_lock", None) for each in made_once),  # of what Numba makes at first use
            getattr(getattr(getattr(binding, "lib", None), "_lock", None), "_lock", None),
        ),
    )


fork_waits_for(lock, _of_compilers)
