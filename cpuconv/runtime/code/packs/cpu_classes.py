"""Classes of CPUs for which packs are built, and the selection of the class for a CPU.

A class is compiled for the CPU of its name, with exactly the features that are listed here. Its code runs on CPUs with
all of these features. A CPU with a wider instruction set than the class needs other tiles, which packs of that class
do not contain: so it does not use them.

Source: LLVM's tables of CPUs, without features that compiled kernels never use (system, threads, cryptography), as
virtual machines may hide these.
"""

from __future__ import annotations

from collections.abc import Iterable

from baselib.data_classes import dataclass

X86, ARM = "x86_64", "aarch64"


@dataclass(frozen=True)
class CpuClass:
    """A class of CPUs that use the same part of a pack.

    Attributes
    ----------
    name : str
        LLVM's name of the CPU that the code is compiled for.
    machine : str
        LLVM's name of the architecture.
    features : frozenset of str
        Features that the code may use, by LLVM's names.
    wider : tuple of str
        Features of wider instruction sets; a CPU with one of them does not use this class.
    caches : tuple of int
        Sizes of L1d, L2 and L3 for the cost model, in bytes.
    """

    name: str
    machine: str
    features: frozenset[str]
    wider: tuple[str, ...]
    caches: tuple[int, int, int]


_V2 = {
    *("64bit", "cmov", "crc32", "cx16", "cx8", "fxsr", "mmx", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1"),
    *("sse4.2", "ssse3"),
}
_V3 = {*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
_ZEN3 = {*_V3, "prfchw"}
_V4 = {*_ZEN3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_ICELAKE = {*_V4, "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512vpopcntdq", "gfni"}
_ZEN4 = {*_ICELAKE, "avx512bf16"}
_NEON = {"fp-armv8", "neon"}
_A55 = {*_NEON, "crc", "dotprod", "fullfp16", "lse", "rdm"}
_V1 = {*_A55, "bf16", "fp16fml", "i8mm", "rcpc", "sve"}
_M1 = {*_A55, "fp16fml", "rcpc"}

_KIB, _MIB = 1 << 10, 1 << 20
CLASSES: tuple[CpuClass, ...] = tuple(
    CpuClass(name, machine, frozenset(features), wider, (l1 * _KIB, l2 * _KIB, l3 * _MIB))
    for name, machine, features, wider, (l1, l2, l3) in (
        ("x86-64-v2", X86, _V2, ("avx2", "avx512f"), (32, 256, 8)),
        ("haswell", X86, _V3, ("avx512f",), (32, 256, 8)),
        ("znver3", X86, _ZEN3, ("avx512f",), (32, 512, 32)),
        ("skylake-avx512", X86, _V4, (), (32, 1024, 16)),
        ("icelake-server", X86, _ICELAKE, (), (48, 1280, 32)),
        (
            "sapphirerapids",
            X86,
            {*_ZEN4, "amx-bf16", "amx-int8", "amx-tile", "avx512fp16", "avxvnni"},
            (),
            (48, 2048, 64),
        ),
        ("znver4", X86, _ZEN4, (), (32, 1024, 32)),
        ("znver5", X86, {*_ZEN4, "avxvnni"}, (), (48, 1024, 32)),
        ("cortex-a72", ARM, _NEON, (), (32, 1024, 1)),
        ("cortex-a55", ARM, _A55, (), (32, 128, 1)),
        ("cortex-a76", ARM, _A55 | {"rcpc"}, (), (64, 512, 2)),
        ("neoverse-n1", ARM, _A55 | {"rcpc"}, (), (64, 1024, 32)),
        ("neoverse-v1", ARM, _V1, (), (64, 1024, 32)),
        ("apple-m1", ARM, _M1, (), (128, 12288, 8)),
    )
)
BY_NAME = {each.name: each for each in CLASSES}


def fitting(machine: str, name: str, features: Iterable[str]) -> list[CpuClass]:
    """Return the classes whose code a CPU runs, best first: its own, then by the number of features used.

    Among classes with equally many features, one for a CPU of the same vendor comes first.

    Parameters
    ----------
    machine, name : str
        LLVM's names of the architecture and of the CPU.
    features : iterable of str
        LLVM's names of the features that the CPU has and the system enables.
    """
    there = frozenset(features)
    found = (
        each for each in CLASSES if each.machine == machine and each.features <= there and there.isdisjoint(each.wider)
    )
    return sorted(found, key=lambda each: (each.name != name, -len(each.features), _maker(each.name) != _maker(name)))


def _maker(name: str) -> str:
    """Return the name prefix of a vendor's CPUs; empty for Intel and unknown ones."""
    return next((each for each in ("znver", "cortex", "neoverse", "apple") if name.startswith(each)), "")
