"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.collecting import resting


def lazily(package: str, names: Mapping[str, Sequence[str]], namespace: dict[str, Any]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names lie in modules that it does not import.

    Parameters
    ----------
    package : str
    names : mapping of str to sequence of str
        Names by the module that has them.
    namespace : dict
        The package's own, which keeps what was asked for.
    """
    modules = {name: module for module, each in names.items() for name in each}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with resting():
            value = namespace[name] = getattr(importlib.import_module(modules[name]), name)
        return value

    return find
