"""Hashes of the kernel sources that a module is made from: a change of one file makes stale what follows from it alone.

A module is made from its own file and, through imports, from the files of the kernel rooms that it reaches. Of each
counts what code follows from (`syntax`), and of what it imports the name and the content of the file that
it is from. So a comment, a docstring, an annotation, or a file that is moved changes no hash; a constant does, and so
does a name that is taken from another file.

A package that is installed without source files (byte code alone) has the stamps of its sources where it holds what is
known of them by their hashes in its RECORD, as wheels with kernel packs do. Else, and in an archive, it is told by its
release: its version and all hashes of its RECORD. A stamp is only given of what was imported: files that were replaced
since tell nothing of it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cpuconv import origin
from cpuconv.runtime.code.sources import kept_stamps
from cpuconv.runtime.code.sources.parsed import shipped, syntaxes
from cpuconv.runtime.code.sources.syntax import Import, Syntax

ROOMS = ("functions", "runtime", "isa", "kernels", "solvers")
# Modules and folders of these rooms that find and store machine code: no kernel is made from them.
BESIDE = (
    "at_hand",
    "background",
    "cache",
    "checked_file",
    "compiler_lock",
    "kernel_body",
    "kernel_files",
    "llvm",
    "llvm_loader",
    "loader",
    "object_file",
    "packs",
    "sources",
    "together",
    "waiting",
)
_ROOT = origin.ROOT
_PACKAGE = _ROOT.name
_PREFIXES = tuple(f"{_PACKAGE}.{room.replace('/', '.')}." for room in ROOMS)
_OURS_ALONE = os.urandom(8).hex()  # the stamp of what has none that holds in other processes


@functools.cache
def stamp(*modules: str) -> str:
    """Hash of what the modules are made from; one of another package counts as made from every kernel source.

    Where there is a `fault`, it is a text that no other process has.
    """
    if fault(*modules) is not None:
        return _OURS_ALONE
    if (kept := kept_stamps.find(modules)) is not None:
        return kept.stamp
    if not _are_among(known_syntaxes(), modules):
        return _hash([origin.RELEASE or "", *modules])
    reached = _reached(modules)
    made = _hash(map(_content, reached))
    if files():
        kept_stamps.keep(modules, made, sorted(os.fspath(files()[each]) for each in reached))
    return made


@functools.cache
def fault(*modules: str) -> str | None:
    """Why nothing tells what was imported of the modules, in words; None if their `stamp` does."""
    kept = kept_stamps.find(modules)
    if kept is not None:
        if _are_unchanged(kept.paths):
            return None
    elif _are_among(files(), modules):
        if _are_unchanged(os.fspath(files()[each]) for each in _reached(modules)):
            return None
    elif origin.RELEASE is None:
        return f"{_ROOT} holds no source files, and no RECORD of an installed {_PACKAGE} says what they were"
    elif origin.release() == origin.RELEASE:
        return None
    return f"{_ROOT} has changed since this process imported it"


_settled: set[str] = set()  # files of modules that had been imported when the files were found unchanged


def _are_unchanged(paths: Iterable[str]) -> bool:
    """Whether files are those of the import, since before what `known_syntaxes` has read, or what is kept was of."""
    left = [path for path in paths if path not in _settled]
    if not origin.is_unchanged(left):
        return False
    _settled.update(path for path in left if getattr(sys.modules.get(_name_of(path)), "__file__", None) == path)
    return True


def _name_of(path: str) -> str:
    """The name of the module of a source file."""
    parts = path[len(os.fspath(_ROOT)) + 1 : -len(".py")].split(os.sep)
    return ".".join((_PACKAGE, *parts)).removesuffix(".__init__")


def _reached(modules: Sequence[str]) -> set[str]:
    """The modules of the kernel rooms that these are made from."""
    return set().union(*map(made_from, modules))


def _are_among(known: Mapping[str, object], modules: tuple[str, ...]) -> bool:
    """Whether these are known, as far as they are of the kernel rooms."""
    return bool(known) and all(each in known for each in modules if each.startswith(_PREFIXES))


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:16]


@functools.cache
def made_from(module: str) -> frozenset[str]:
    """The modules of the kernel rooms that a module is made from."""
    if module not in known_syntaxes():
        return frozenset(known_syntaxes())
    found, todo = {module}, [module]
    while todo:
        new = imported(todo.pop()) - found
        found |= new
        todo += new
    return frozenset(found)


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules of the kernel rooms that a module of theirs imports."""
    return frozenset(filter(None, map(_target, known_syntaxes()[module].imports)))


@functools.cache
def _content(module: str) -> str:
    """A module's content, and that of the modules that it imports from: wherever they lie, and whatever their order."""
    told = []
    for each in known_syntaxes()[module].imports:
        target = _target(each)
        name = "" if target == _inner(each) else each.name  # a module is known by its content alone
        told.append(f"{name} {each.bound} {known_syntaxes()[target].content if target else ''}")
    return "\n".join([known_syntaxes()[module].content, *sorted(told)])


def _target(found: Import) -> str | None:
    """The module of the kernel rooms that a name is, or stands in; None of what lies elsewhere."""
    return next((path for path in (_inner(found), found.module) if path in known_syntaxes()), None)


def _inner(found: Import) -> str:
    return f"{found.module}.{found.name}" if found.name else found.module


@functools.cache
def known_syntaxes() -> dict[str, Syntax]:
    """Each module of the kernel rooms that shapes code."""
    known = files()
    if not known:
        return _recorded()
    return dict(zip(known, syntaxes(path.read_bytes() for path in known.values()), strict=True))


def _recorded() -> dict[str, Syntax]:
    """The same of an install without source files, by its RECORD; nothing where one of them is not known."""
    hashes = {}
    for line in (origin.RELEASE or "").splitlines():
        path, _, rest = line.partition(",")
        package, *parts = path.removesuffix(".py").split("/")
        if package == _PACKAGE and path.endswith(".py") and (module := _module(parts)) is not None:
            hashes[module] = rest.partition(",")[0]
    known = shipped() if hashes else {}
    return {module: known[key] for module, key in hashes.items()} if known.keys() >= {*hashes.values()} else {}


def _module(parts: Sequence[str]) -> str | None:
    """The module of a path in the package, if it is one of the kernel rooms that shapes code."""
    if parts[0] not in ROOMS or (parts[0] == "runtime" and not set(BESIDE).isdisjoint(parts)):
        return None
    return ".".join((_PACKAGE, *parts)).removesuffix(".__init__")


@functools.cache
def files() -> dict[str, Path]:
    """Each module of the kernel rooms that shapes code with its file."""
    root = os.fspath(_ROOT)
    found = {}
    for room in ROOMS:
        for path in origin.source_files(os.path.join(root, room)):
            module = _module(path[len(root) + 1 : -len(".py")].split(os.sep))
            if module is not None:
                found[module] = Path(path)
    return found
