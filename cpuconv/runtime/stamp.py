"""Hashes of the kernel sources that a module is made from: a change of one file makes stale what follows from it alone.

A module is made from its own file and, through their import statements, the files of the kernel rooms that it reaches.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

ROOMS = ("runtime", "isa", "micro", "solvers")
_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = __name__.partition(".")[0]

# A tenth of the time that `ast` takes on every file, at the start of every process; a test compares the two.
_FROM = re.compile(rf"^[ \t]*from ({_PACKAGE}[\w.]*) import (\([^)]*\)|[^\n(]+)", re.MULTILINE)
_IMPORT = re.compile(rf"^[ \t]*import ({_PACKAGE}[\w.]+)", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?: as \w+)?\s*(?:,|\)|#|$)")


@functools.cache
def stamp(*modules: str) -> str:
    """Hash of what the modules are made from; one of another package counts as made from every kernel source."""
    digest = hashlib.sha256()
    for module in sorted(set().union(*map(made_from, modules))):
        digest.update(f"{module}\n{_source(module)}".encode())
    return digest.hexdigest()[:16]


@functools.cache
def made_from(module: str) -> frozenset[str]:
    """The modules of the kernel rooms that a module is made from."""
    if module not in _files():
        return frozenset(_files())
    found, todo = {module}, [module]
    while todo:
        new = imported(todo.pop()) - found
        found |= new
        todo += new
    return frozenset(found)


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules of the kernel rooms that a module of theirs imports."""
    source = _source(module)
    names = set(_IMPORT.findall(source))
    for package, text in _FROM.findall(source):
        # A name is a module of the package, or stands in the package's own file.
        inner = {name: f"{package}.{name}" for name in _NAME.findall(text)}
        names |= {path if path in _files() else package for path in inner.values()}
    return frozenset(names & _files().keys())


@functools.cache
def _files() -> dict[str, Path]:
    """Each module of the kernel rooms with its file."""
    return {
        ".".join((_PACKAGE, *path.relative_to(_ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for room in ROOMS
        for path in (_ROOT / room).rglob("*.py")
    }


@functools.cache
def _source(module: str) -> str:
    return _files()[module].read_text("utf-8")
