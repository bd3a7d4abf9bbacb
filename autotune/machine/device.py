"""Identification of this machine, by the properties that run times depend on."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.machine import host_cpu
from autotune.machine.cores import affinity_cores, allowed_cores, quota_cores
from baselib.data_classes import dataclass
from baselib.locks import lazy

__all__ = ["Device", "allowed_cores", "fingerprint", "microarchitecture"]

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

# Defaults for unknown caches: a small but common core.
DEFAULT_CACHES = {"L1d": 32 << 10, "L2": 512 << 10, "L3": 8 << 20}

# Names of macOS's sysctl; those of performance cores before those of the machine.
DARWIN_TEXTS = ("machdep.cpu.vendor", "machdep.cpu.brand_string")
DARWIN_NUMBERS = ("hw.cpufamily", "hw.cpusubfamily", "machdep.cpu.stepping")
DARWIN_CACHES = {
    "L1d": ("hw.perflevel0.l1dcachesize", "hw.l1dcachesize"),
    "L2": ("hw.perflevel0.l2cachesize", "hw.l2cachesize"),
    "L3": ("hw.l3cachesize",),
}

# Instruction sets with the LLVM features that they need, widest first.
ISAS = (
    ("avx512", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ("avx2", ("avx2", "fma")),
    ("avx", ("avx",)),
    ("sse4", ("sse4.2",)),
    ("sve", ("sve",)),
    ("neon", ("neon",)),
)

# Features that identify the microarchitecture where a virtual machine reports an older CPU's numbers, newest first.
MARKER_FEATURES = (("avx10.1", "graniterapids"), ("amx-tile", "sapphirerapids"))
_WITH_TILES = "rapids"  # substring of LLVM's name of every CPU with these features

VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel", "0x41": "arm", "0x61": "apple", "0xc0": "ampere"}

LLVM_OF = {"0.50.0": "22.1.0"}
"""LLVM's version in the wheels of llvmlite, by llvmlite's release."""

# Fields for the user that run times do not depend on, except through the number of cores.
KEY_EXCLUDED = ("affinity", "quota", "release")


@dataclass(frozen=True)
class Device:
    """A machine from the tuner's view. `features` is LLVM's list; `caches` has the size of each level in bytes."""

    vendor: str
    model: str
    family: str
    number: str
    stepping: str
    machine: str
    isa: str
    cpu_name: str
    features: str
    caches: tuple[tuple[str, int], ...]
    cores: int
    os: str
    numpy: str
    numba: str
    llvm: str
    affinity: int
    quota: float | None
    release: str

    @lazy
    def key(self) -> str:
        """Short hash of the fields that run times depend on."""
        fields = {name: value for name, value in asdict(self).items() if name not in KEY_EXCLUDED}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """File-name form: vendor, microarchitecture and cores, such as "amd-znver5-2c"."""
        vendor = VENDORS.get(self.vendor, self.vendor) or self.machine
        words = re.findall(r"[a-z0-9]+", f"{vendor} {microarchitecture(self.cpu_name, self.features)}".lower())
        return "-".join([*words, f"{self.cores}c"])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the key, as JSON types."""
        return {"key": self.key, **asdict(self), "caches": dict(self.caches)}


def microarchitecture(cpu_name: str, features: str) -> str:
    """Return LLVM's name of a CPU; where a virtual machine hides it, the name derived from its features."""
    there = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    told = (name for feature, name in MARKER_FEATURES if feature in there and _WITH_TILES not in cpu_name)
    return next(told, cpu_name)


@functools.cache
def fingerprint() -> Device:
    """Return this machine; cached in the process (`fingerprint.cache_clear()` resets it)."""
    cpu = cpu_of()
    name, features = _target(os.environ)
    return Device(
        vendor=cpu["vendor"],
        model=cpu["model"],
        family=cpu["family"],
        number=cpu["number"],
        stepping=cpu["stepping"],
        machine=platform.machine(),
        isa=_isa(features),
        cpu_name=name,
        features=features,
        caches=tuple(caches_of().items()),
        cores=allowed_cores(),
        os=platform.system(),
        numpy=version_of("numpy"),
        numba=version_of("numba"),
        llvm=_llvm_version(),
        affinity=affinity_cores(),
        quota=quota_cores(),
        release=platform.release(),
    )


def _target(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return LLVM's CPU name and the enabled features, as Numba passes them to code generation."""
    name, features = host_cpu.chosen(environ)
    if isinstance(features, str):
        return name, features
    return name, ",".join(sorted(f"+{key}" for key, on in features.items() if on))


def _isa(features: str) -> str:
    present = {part[1:] for part in features.split(",") if part.startswith("+")}
    return next((name for name, needs in ISAS if present.issuperset(needs)), platform.machine())


def _llvm_version() -> str:
    """Return LLVM's version from a table of llvmlite's releases, else from LLVM, whose import takes 50 ms and 45 MB."""
    known = LLVM_OF.get(version_of("llvmlite"))
    if known is not None:
        return known
    import llvmlite.binding as llvm

    return ".".join(map(str, llvm.llvm_version_info))


def version_of(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    # Not the module's `__version__`: its format may differ, and the module may not be imported yet.
    if named := _version_by_folder(package):
        return named
    from importlib import metadata  # the import takes 20 ms

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", "")


def _version_by_folder(package: str) -> str | None:
    """Return the version in the name of the first `.dist-info` folder on the path, if that path entry has only one."""
    told = re.compile(rf"{re.escape(package)}-([^-_]+)\.dist-info", re.IGNORECASE)
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found = [match[1] for match in map(told.fullmatch, os.listdir(folder or os.curdir)) if match]
            if found:
                return found[0] if len(found) == 1 else None
    return None


def cpu_of(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Return vendor, model, family, number and stepping; "" where the system does not report them."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return _cpu_elsewhere()
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    info = {key.strip(): value.strip() for key, _, value in pairs}

    def first(*names: str) -> str:
        return next((info[name] for name in names if info.get(name)), "")

    return {
        "vendor": first("vendor_id", "CPU implementer"),
        "model": first("model name", "Model", "CPU part") or platform.processor(),
        "family": first("cpu family", "CPU architecture"),
        "number": first("model", "CPU part"),
        "stepping": first("stepping", "CPU revision"),
    }


def _cpu_elsewhere() -> dict[str, str]:
    if sys.platform == "darwin":
        texts = [_sysctl(name).rstrip(b"\0").decode(errors="replace") for name in DARWIN_TEXTS]
        numbers = [str(_number(_sysctl(name))) for name in DARWIN_NUMBERS]
        return dict(zip(("vendor", "model", "family", "number", "stepping"), texts + numbers, strict=True))
    # Windows has one text like "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel".
    return dict(vendor="", model=platform.processor(), family="", number="", stepping="")


def caches_of(folder: Path = CACHES) -> dict[str, int]:
    """Return the size in bytes of each level of the first core's data caches."""
    caches: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level = ((index / name).read_text().strip() for name in ("type", "level"))
            if kind != "Instruction":
                caches["L1d" if level == "1" else f"L{level}"] = _bytes((index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
    if not caches and sys.platform == "darwin":
        for level, names in DARWIN_CACHES.items():
            if size := next((size for name in names if (size := _number(_sysctl(name)))), 0):
                caches[level] = size
    return caches or dict(DEFAULT_CACHES)


def _bytes(text: str) -> int:
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text)


def _sysctl(name: str) -> bytes:
    """Return the raw bytes of a value of macOS's sysctl; empty if unknown."""
    size = ctypes.c_size_t(256)
    buffer = ctypes.create_string_buffer(size.value)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return b"" if failed else buffer.raw[: size.value]


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, sys.byteorder)
