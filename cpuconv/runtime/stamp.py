"""Hashes of the kernel sources that a module is made from: a change of one file makes stale what follows from it alone.

A module is made from its own file and, through imports, from the files of the kernel rooms that it reaches. Of each
counts what code follows from (`runtime.syntax`), and of what it imports the name and the content of the file that it is
from. So a comment, a docstring, an annotation, or a file that is moved changes no hash; a constant does, and so does a
name that is taken from another file.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from cpuconv.runtime.parsed import syntaxes
from cpuconv.runtime.syntax import Import, Syntax

ROOMS = ("runtime", "isa", "micro", "solvers", "graph/kernels")
# Of those rooms what keeps and finds code, and shapes none.
BESIDE = ("cache", "compiler_lock", "kept", "ownership", "parsed", "stamp", "syntax")
_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = __name__.partition(".")[0]


@functools.cache
def stamp(*modules: str) -> str:
    """Hash of what the modules are made from; one of another package counts as made from every kernel source."""
    reached: set[str] = set().union(*map(made_from, modules))
    return hashlib.sha256("\n".join(sorted(map(_content, reached))).encode()).hexdigest()[:16]


@functools.cache
def made_from(module: str) -> frozenset[str]:
    """The modules of the kernel rooms that a module is made from."""
    if module not in _syntaxes():
        return frozenset(_syntaxes())
    found, todo = {module}, [module]
    while todo:
        new = imported(todo.pop()) - found
        found |= new
        todo += new
    return frozenset(found)


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules of the kernel rooms that a module of theirs imports."""
    return frozenset(filter(None, map(_target, _syntaxes()[module].imports)))


@functools.cache
def _content(module: str) -> str:
    """A module's content, and that of the modules that it imports from: wherever they lie, and whatever their order."""
    told = []
    for each in _syntaxes()[module].imports:
        target = _target(each)
        name = "" if target == _inner(each) else each.name  # a module is known by its content alone
        told.append(f"{name} {each.bound} {_syntaxes()[target].content if target else ''}")
    return "\n".join([_syntaxes()[module].content, *sorted(told)])


def _target(found: Import) -> str | None:
    """The module of the kernel rooms that a name is, or stands in; None of what lies elsewhere."""
    return next((path for path in (_inner(found), found.module) if path in _syntaxes()), None)


def _inner(found: Import) -> str:
    return f"{found.module}.{found.name}" if found.name else found.module


@functools.cache
def _syntaxes() -> dict[str, Syntax]:
    """Each module of the kernel rooms that shapes code."""
    files = _files()
    return dict(zip(files, syntaxes(path.read_bytes() for path in files.values()), strict=True))


def _files() -> dict[str, Path]:
    """Each module of the kernel rooms that shapes code with its file."""
    found = {}
    for room in ROOMS:
        for path in (_ROOT / room).rglob("*.py"):
            parts = path.relative_to(_ROOT).with_suffix("").parts
            if not (room == "runtime" and parts[-1] in BESIDE):
                found[".".join((_PACKAGE, *parts)).removesuffix(".__init__")] = path
    return found
