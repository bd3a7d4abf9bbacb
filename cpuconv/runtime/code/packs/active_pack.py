"""The kernel pack that this process uses.

Packs are files of the installed package, and as trusted as its code. A damaged pack is skipped with one warning; its
kernels are compiled instead.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
import weakref
from pathlib import Path
from typing import NamedTuple

from cpuconv import origin
from cpuconv.errors import CpuconvWarning
from cpuconv.runtime.code.packs import cpu_classes
from cpuconv.runtime.code.packs.cpu_classes import CpuClass
from cpuconv.runtime.code.packs.pack_file import Damaged, Part, of_file
from cpuconv.runtime.target import target

VARIABLE = "CPUCONV_PACKS"
OFF = "0"  # value of the variable that disables packs
SUFFIX = ".pack"
FOLDER = origin.ROOT / "packs"


class ActivePack(NamedTuple):
    """The part of the package's pack that this process uses.

    Attributes
    ----------
    cpu : str
        The class of CPUs of the part; empty if there is none.
    part : Part or None
        Kernels of the part.
    why : str
        The reason why there is no part; empty if there is one.
    """

    cpu: str
    part: Part | None
    why: str


def path() -> Path:
    """Return the pack file of this architecture."""
    return FOLDER / f"{_machine()}{SUFFIX}"


def find(name: str) -> bytes | None:
    """Return a kernel's content by file name, as `checked_file.read` does for the cache; None if no pack has it."""
    for each in list(_trusted):
        with contextlib.suppress(Damaged):
            if (found := each.get(name)) is not None:
                return found
    part = current().part
    if part is None or _disabled:
        return None
    try:
        return part.get(name)
    except Damaged as error:
        _warn(error)
        _disabled.append(str(error))
        return None


def has(name: str) -> bool:
    """Whether an active pack has a kernel with this name, damaged or not."""
    if any(name in each for each in list(_trusted)):
        return True
    part = current().part
    return part is not None and not _disabled and name in part


def is_any_active() -> bool:
    """Whether this process uses kernels of a pack: the package's, or a trusted one."""
    return bool(_trusted) or current().part is not None


def trust(part: Part) -> None:
    """Use the kernels of a part too, before the package's, while the part exists."""
    _trusted.add(part)


_trusted: weakref.WeakSet[Part] = weakref.WeakSet()


_disabled: list[str] = []  # reasons why the pack is no longer used


@functools.cache
def current() -> ActivePack:
    """Find the part of the package's pack that fits the target of this process best."""
    if os.environ.get(VARIABLE) == OFF:
        return ActivePack("", None, f"{VARIABLE} is {OFF}")
    if not _is_linux():
        return ActivePack("", None, "packs are made for Linux")
    file = path()
    if not file.is_file():
        return ActivePack("", None, f"there is no file {file}")
    classes = [each.name for each in fitting()]
    try:
        pack = of_file(file)
        best = next((each for each in classes if each in pack.parts), "")
        if best:
            return ActivePack(best, pack.part(best), "")
    except Damaged as error:
        _warn(error)
        return ActivePack("", None, f"{file} is damaged: {error}")
    wanted = f"none for {' or '.join(classes)}" if classes else f"none that this CPU, {target()[1]}, runs"
    return ActivePack("", None, f"{file} has kernels for {', '.join(pack.parts)}, and {wanted}")


def fitting() -> list[CpuClass]:
    """Return the classes of CPUs whose packs this process can use, best first."""
    if not _is_linux():
        return []
    _, name, features = target()
    there = (each[1:] for each in features.split(",") if each.startswith("+"))
    return cpu_classes.fitting(_machine(), name, there)


def _is_linux() -> bool:
    return sys.platform == "linux" and "linux" in target()[0]


def _machine() -> str:
    return target()[0].partition("-")[0]


def _warn(error: Damaged) -> None:
    message = f"the kernels of {path()} are compiled instead, as it is damaged: {error}"
    warnings.warn(message, CpuconvWarning, stacklevel=2)
