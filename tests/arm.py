"""A root folder of emulated aarch64: QEMU, a Python of Debian's and the wheels that the tests need.

Nothing of the machine is changed and no rights are needed: packages are resolved in a state of APT's own and unpacked,
not installed. The folder is made once, and again when the list of what it is made from changes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import platformdirs
from filelock import FileLock

QEMU = "qemu-aarch64-static"
PACKAGES = ("qemu-user-static", "python3:arm64", "libgomp1:arm64", "libstdc++6:arm64")
GLIBC = (28, 27, 26, 17)  # minor versions of glibc 2 that wheels for Linux are made for
UNRUNNABLE = ("onnxruntime",)  # its library ends the process when it is loaded under emulation
TOOLS = ("apt-get", "dpkg", "dpkg-deb")
PATIENCE = 600.0  # seconds for each download


class Unavailable(RuntimeError):
    """The root cannot be made on this machine; the message says what is missing."""


def root() -> Path:
    """The folder, in that of the variable CPUCONV_ARM_ROOT or in the user's cache; made when it is missing or stale.

    Raises
    ------
    Unavailable
        This is no Debian, or its packages or the wheels cannot be reached.
    """
    chosen = os.environ.get("CPUCONV_ARM_ROOT")
    folder = (Path(chosen).absolute() if chosen else Path(platformdirs.user_cache_dir("cpuconv-arm"))) / "aarch64"
    wanted = _wanted()
    stamp = folder / "stamp"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not stamp.exists() or stamp.read_text() != wanted:
            _make(folder)
            stamp.write_text(wanted)
    return folder


_EMULATED = {"neoverse-v1": "max"}  # CPUs that older emulators do not know by name, and what has all that they have


def launcher(folder: Path, cpu: str) -> list[str]:
    """The command that runs the programs of the root on an emulated `cpu`."""
    return [str(folder / QEMU), "-cpu", _EMULATED.get(cpu, cpu), "-L", str(folder)]


def interpreter(folder: Path, cpu: str) -> Path:
    """A script that runs the root's Python on an emulated `cpu`, for callers that can only start a program by path."""
    path = folder / f"python-{cpu}"
    command = [*launcher(folder, cpu), str(_python(folder))]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
    return path


def _python(folder: Path) -> Path:
    return (folder / "usr/bin/python3").resolve()


def _requirements() -> list[str]:
    """The requirements of the package and its tests that can run there, read from its metadata."""
    needs = importlib.metadata.requires("cpuconv") or []
    return [
        re.sub(r"\s*;.*", "", need)
        for need in needs
        if ("extra ==" not in need or re.search(r"""["']dev["']""", need)) and not need.startswith(UNRUNNABLE)
    ]


def _wanted() -> str:
    """A hash of what the root is made from."""
    return hashlib.sha256("\n".join([Path(__file__).read_text(), *_requirements()]).encode()).hexdigest()


def _make(folder: Path) -> None:
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise Unavailable(f"{', '.join(missing)} missing: the root is made of Debian's packages")
    shutil.rmtree(folder, ignore_errors=True)
    apt = folder / "apt"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()  # nothing is installed, so all that is needed is fetched
    native = _run("dpkg", "--print-architecture").strip()
    options = {
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Architectures": f"{native},arm64",
        "APT::Sandbox::User": "",
        "Acquire::Retries": 3,
    }
    configured = [f"-o{name}={value}" for name, value in options.items()]
    # A source without packages for arm64 fails alone; what counts is whether the packages are found.
    subprocess.run(["apt-get", *configured, "-qq", "update"], capture_output=True, timeout=PATIENCE)
    _run("apt-get", *configured, "-qq", "-y", "--no-install-recommends", "--download-only", "install", *PACKAGES)
    for package in (apt / "cache/archives").glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(apt / "native" if package.stem.endswith(f"_{native}") else folder))
    shutil.move(apt / "native/usr/bin" / QEMU, folder)
    shutil.rmtree(apt)
    _install(folder)


def _install(folder: Path) -> None:
    """Put the wheels where the root's Python looks for them."""
    python = _python(folder)
    version = python.name.removeprefix("python")
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in GLIBC] + ["manylinux2014_aarch64"]
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"),
        *("--implementation", "cp", "--python-version", version),
        *(word for name in platforms for word in ("--platform", name)),
        *("--target", str(folder / f"usr/local/lib/{python.name}/dist-packages"), *_requirements()),
    )


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} did not end within {PATIENCE:g} s") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(f"{Path(command[0]).name} failed: {' '.join(said[-3:])}")
    return done.stdout
