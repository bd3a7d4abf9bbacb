"""Refuse unsupported Python interpreters: in them, the import of this module, and so of the package, fails.

The module also imports NumPy with signals blocked, so that the threads of NumPy's BLAS receive no signals. This has no
effect if NumPy was imported before.
"""

from __future__ import annotations

import ctypes
import importlib
import sys

from baselib.signals import signals_blocked


def check() -> None:
    """Check that this is the main interpreter of its process, and that it has the global interpreter lock.

    Raises
    ------
    ImportError
        It is not: threads of a sub-interpreter keep its process from ending, and without the lock several threads
        would change the caches simultaneously.
    """
    if not _is_main():
        raise ImportError(
            "cpuconv must be imported in the main interpreter of a process, not in a sub-interpreter "
            "(mod_wsgi: 'WSGIApplicationGroup %{GLOBAL}')."
        )
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "cpuconv needs Python's global interpreter lock: free-threaded Python must be started with PYTHON_GIL=1 or "
            "-X gil=1."
        )


def _is_main() -> bool:
    api = ctypes.pythonapi
    main, current = (getattr(api, f"PyInterpreterState_{name}", None) for name in ("Main", "Get"))
    if main is None or current is None:  # not CPython
        return True
    main.restype = current.restype = ctypes.c_void_p
    return bool(main() == current())


check()
with signals_blocked():
    importlib.import_module("numpy")
