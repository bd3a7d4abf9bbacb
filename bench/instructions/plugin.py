"""The QEMU plugin that counts instructions: compiled where it is needed, and the marks that start and stop it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

QEMU = "qemu-aarch64"
SOURCE = Path(__file__).with_name("plugin.c")
START, STOP = 100001, 100002  # numbers of system calls that the plugin takes as marks
_NEW_INTERFACE = 9  # first major version of QEMU that refuses version 1 of the plugins' interface


class Unavailable(RuntimeError):
    """There is no emulator with plugins, no C compiler or no root folder of aarch64."""


def build(folder: Path) -> list[str]:
    """Compile the plugin into `folder`; return the command that emulates with it, without a program.

    Raises
    ------
    Unavailable
        There is no `qemu-aarch64` with plugins (Debian: the package qemu-user) or no C compiler.
    """
    qemu, compiler = shutil.which(QEMU), shutil.which(os.environ.get("CC", "cc"))
    if qemu is None:
        raise Unavailable(f"no {QEMU} in PATH (Debian: apt-get install qemu-user)")
    if compiler is None:
        raise Unavailable("no C compiler")
    said = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)", said)
    version = 2 if found and int(found[1]) >= _NEW_INTERFACE else 1
    library = folder / "plugin.so"
    options = ["-shared", "-fPIC", "-O2", "-fvisibility=hidden", f"-DVERSION={version}"]
    done = subprocess.run([compiler, *options, "-o", str(library), str(SOURCE)], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"the plugin does not compile: {done.stderr.strip()[:500]}")
    return [qemu, "-plugin", str(library)]


def counted(run: Callable[[], object], file: int) -> None:
    """In the emulated program: run once; the plugin writes the counts to a file descriptor as a line of JSON."""
    system_call = ctypes.CDLL(None).syscall
    system_call(START)
    run()
    system_call(STOP, file)
