"""Package attributes that are imported at the first access."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baselib.gc_pause import gc_paused


def lazily(package: str, names: Mapping[str, Sequence[str]], namespace: dict[str, Any]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package that imports its names' modules lazily.

    Parameters
    ----------
    package : str
    names : mapping of str to sequence of str
        Names by their module.
    namespace : dict
        The package's namespace, which caches imported names.
    """
    modules = {name: module for module, each in names.items() for name in each}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with gc_paused():
            value = namespace[name] = getattr(importlib.import_module(modules[name]), name)
        return value

    return find
