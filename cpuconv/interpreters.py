"""Which interpreters of Python the package runs in: in others the import of this module, and so of the package, fails.

It also imports NumPy, so that the threads that NumPy's BLAS starts take no signals, unless somebody has imported it.
"""

from __future__ import annotations

import ctypes
import importlib
import sys

from autotune.signals import signals_blocked


def check() -> None:
    """See that this interpreter is the main one of its process, and has its global lock.

    Raises
    ------
    ImportError
        It is another one: threads that it leaves behind keep its process from ending, and without the lock several
        threads at once would change what calls remember.
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
    if main is None or current is None:  # of an interpreter that is not CPython
        return True
    main.restype = current.restype = ctypes.c_void_p
    return bool(main() == current())


check()
with signals_blocked():
    importlib.import_module("numpy")
