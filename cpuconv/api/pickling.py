"""Pickles of models: the call that made the model, which another process repeats."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from cpuconv.network.model import Model

_KEPT = 2  # models that a process keeps for further pickles of the same call, as of one task after another


def origin(function: Callable[..., Model], given: Mapping[str, Any]) -> Callable[[], Model] | None:
    """Return a call that makes the model in another process; None if the arguments do not define it there.

    Parameters
    ----------
    function : Callable[..., Model]
        A public function of a module.
    given : mapping of str to any
        Its arguments by name, the source of the model first.
    """
    source, *others = given.values()
    if isinstance(source, (str, os.PathLike)):
        source = os.path.abspath(source)
    elif not isinstance(source, bytes):
        return None
    if given.get("precision") == "auto":
        return None
    call = functools.partial(function, source, **dict(zip([*given][1:], others, strict=True)))
    return functools.partial(_made, pickle.dumps(call))


def _made(call: bytes) -> Model:
    """Return the model of a pickled call: the same one again, as long as its file is the same."""
    source = pickle.loads(call).args[0]
    return _kept(call, identity(source) if isinstance(source, str) else ())


@functools.lru_cache(_KEPT)
def _kept(call: bytes, identity: tuple[int, ...]) -> Model:
    made: Model = pickle.loads(call)()
    return made


def identity(path: str) -> tuple[int, ...]:
    """Identity of a file's content: device, inode, size and modification time; empty if the file is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
