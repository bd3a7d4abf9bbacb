"""Stamps: hashes of the kernel sources that a module depends on, so that a change invalidates only its dependents.

A module depends on its own file and on the kernel sources that it imports, directly or indirectly. The hash of a file
covers what determines code (`syntax`). The hash of an import covers the name, and the content of the file that defines
it. So a comment, a docstring, an annotation or a moved file changes no stamp; a constant, or a name imported from
another file, does.

A package may be installed without source files (bytecode only). It has the stamps of its sources if it ships their
parsed syntax by the hashes in its RECORD (wheels with kernel packs do). Otherwise, and in an archive, its stamp is
that of the release: the version and all hashes in its RECORD. A stamp identifies the imported files; if files were
replaced since, there is a `fault`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cpuconv import origin
from cpuconv.runtime.code.sources import stamp_cache
from cpuconv.runtime.code.sources.parsed import shipped, syntaxes
from cpuconv.runtime.code.sources.syntax import Import, Syntax

PACKAGES = ("functions", "runtime", "isa", "kernels", "solvers")
# Modules and folders that find and store machine code; kernels do not depend on them.
EXCLUDED = (
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
    "parallel_compile",
    "sources",
    "waiting",
)
_ROOT = origin.ROOT
_PACKAGE = _ROOT.name
_PREFIXES = tuple(f"{_PACKAGE}.{package.replace('/', '.')}." for package in PACKAGES)
_PROCESS_STAMP = os.urandom(8).hex()  # the stamp where no stamp is valid in other processes


@functools.cache
def stamp(*modules: str) -> str:
    """Return the hash of the sources that modules depend on; one of another package depends on all kernel sources.

    If there is a `fault`, the stamp is unique to this process.
    """
    if fault(*modules) is not None:
        return _PROCESS_STAMP
    if (kept := stamp_cache.find(modules)) is not None:
        return kept.stamp
    if not _are_among(known_syntaxes(), modules):
        return _hash([origin.RELEASE or "", *modules])
    reached = _reached(modules)
    made = _hash(map(_content, reached))
    if files():
        stamp_cache.put(modules, made, sorted(os.fspath(files()[each]) for each in reached))
    return made


@functools.cache
def fault(*modules: str) -> str | None:
    """Return the reason why the imported sources of the modules are unknown; None if `stamp` identifies them."""
    kept = stamp_cache.find(modules)
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


_verified: set[str] = set()  # files found unchanged after their modules were imported


def _are_unchanged(paths: Iterable[str]) -> bool:
    """Whether files are unchanged since the import, and so since `known_syntaxes` or the cached stamp read them."""
    left = [path for path in paths if path not in _verified]
    if not origin.is_unchanged(left):
        return False
    _verified.update(path for path in left if getattr(sys.modules.get(_name_of(path)), "__file__", None) == path)
    return True


def _name_of(path: str) -> str:
    """Return the module name of a source file."""
    parts = path[len(os.fspath(_ROOT)) + 1 : -len(".py")].split(os.sep)
    return ".".join((_PACKAGE, *parts)).removesuffix(".__init__")


def _reached(modules: Sequence[str]) -> set[str]:
    """Return the kernel modules that these modules depend on."""
    return set().union(*map(dependencies, modules))


def _are_among(known: Mapping[str, object], modules: tuple[str, ...]) -> bool:
    """Whether all given modules that are kernel modules are known."""
    return bool(known) and all(each in known for each in modules if each.startswith(_PREFIXES))


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:16]


@functools.cache
def dependencies(module: str) -> frozenset[str]:
    """Return the kernel modules that a module depends on, itself included."""
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
    """Return the kernel modules that a kernel module imports."""
    return frozenset(filter(None, map(_target, known_syntaxes()[module].imports)))


@functools.cache
def _content(module: str) -> str:
    """Return the content of a module and of the modules it imports from, independent of paths and import order."""
    lines = []
    for each in known_syntaxes()[module].imports:
        target = _target(each)
        name = "" if target == _inner(each) else each.name  # an imported module is identified by content alone
        lines.append(f"{name} {each.bound} {known_syntaxes()[target].content if target else ''}")
    return "\n".join([known_syntaxes()[module].content, *sorted(lines)])


def _target(found: Import) -> str | None:
    """Return the kernel module that an import names or takes a name from; None for other modules."""
    return next((path for path in (_inner(found), found.module) if path in known_syntaxes()), None)


def _inner(found: Import) -> str:
    return f"{found.module}.{found.name}" if found.name else found.module


@functools.cache
def known_syntaxes() -> dict[str, Syntax]:
    """Return the syntax of each kernel module that affects code."""
    known = files()
    if not known:
        return _recorded()
    return dict(zip(known, syntaxes(path.read_bytes() for path in known.values()), strict=True))


def _recorded() -> dict[str, Syntax]:
    """Return the same for an install without source files, by its RECORD; empty if a source is unknown."""
    hashes = {}
    for line in (origin.RELEASE or "").splitlines():
        path, _, rest = line.partition(",")
        package, *parts = path.removesuffix(".py").split("/")
        if package == _PACKAGE and path.endswith(".py") and (module := _module(parts)) is not None:
            hashes[module] = rest.partition(",")[0]
    known = shipped() if hashes else {}
    return {module: known[key] for module, key in hashes.items()} if known.keys() >= {*hashes.values()} else {}


def _module(parts: Sequence[str]) -> str | None:
    """Return the module of a path in the package; None unless it is a kernel module that affects code."""
    if parts[0] not in PACKAGES or (parts[0] == "runtime" and not set(EXCLUDED).isdisjoint(parts)):
        return None
    return ".".join((_PACKAGE, *parts)).removesuffix(".__init__")


@functools.cache
def files() -> dict[str, Path]:
    """Return the source file of each kernel module that affects code."""
    root = os.fspath(_ROOT)
    found = {}
    for package in PACKAGES:
        for path in origin.source_files(os.path.join(root, package)):
            module = _module(path[len(root) + 1 : -len(".py")].split(os.sep))
            if module is not None:
                found[module] = Path(path)
    return found
