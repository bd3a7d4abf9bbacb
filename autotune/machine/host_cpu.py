"""Name and features of this CPU in LLVM's terms, from CPUID, without importing LLVM.

LLVM is imported for CPUs that are not in the tables here, such as newer ones, and on other architectures than x86-64 or
other systems than Linux.

Sources: Intel's software developer's manual (CPUID) and AMD's architecture programmer's manual, volume 3; the names are
LLVM's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from autotune.machine.pages import NoExecutableMemory, place_code

CPUINFO = Path("/proc/cpuinfo")
EAX, EBX, ECX, EDX = range(4)
_EXTENDED = 1 << 31

Cpuid = Callable[[int, int], tuple[int, int, int, int]]
"""CPUID: returns the four registers for a leaf and subleaf."""


class Host(NamedTuple):
    """A CPU.

    Attributes
    ----------
    name : str
    features : dict of bool
        Whether the CPU has the feature and the system enables it, by LLVM's name.
    """

    name: str
    features: dict[str, bool]


# LLVM's name of each feature bit by leaf, subleaf and register, and the register state that the system must save.
_ALWAYS, _XSAVE, _AVX, _AVX512, _AMX, _APX = range(6)
_NEEDS = {_ALWAYS: 0, _XSAVE: 0, _AVX: 0x6, _AVX512: 0xE6, _AMX: 0x60000, _APX: 0x80000}  # required bits of XCR0
_BITS: dict[tuple[int, int, int], dict[int, tuple[tuple[int, str], ...]]] = {
    (1, 0, EDX): {_ALWAYS: ((8, "cx8"), (15, "cmov"), (23, "mmx"), (24, "fxsr"), (25, "sse"), (26, "sse2"))},
    (1, 0, ECX): {
        _ALWAYS: (
            *((0, "sse3"), (1, "pclmul"), (9, "ssse3"), (13, "cx16"), (19, "sse4.1"), (20, "sse4.2"), (20, "crc32")),
            *((22, "movbe"), (23, "popcnt"), (25, "aes"), (30, "rdrnd")),
        ),
        _AVX: ((12, "fma"), (26, "xsave"), (28, "avx"), (29, "f16c")),
    },
    (7, 0, EBX): {
        _ALWAYS: (
            *((0, "fsgsbase"), (2, "sgx"), (3, "bmi"), (8, "bmi2"), (10, "invpcid"), (11, "rtm"), (18, "rdseed")),
            *((19, "adx"), (23, "clflushopt"), (24, "clwb"), (29, "sha")),
        ),
        _AVX: ((5, "avx2"),),
        _AVX512: (
            *((16, "avx512f"), (17, "avx512dq"), (21, "avx512ifma"), (28, "avx512cd"), (30, "avx512bw")),
            (31, "avx512vl"),
        ),
    },
    (7, 0, ECX): {
        _ALWAYS: (
            *((4, "pku"), (5, "waitpkg"), (7, "shstk"), (8, "gfni"), (22, "rdpid"), (23, "kl"), (25, "cldemote")),
            *((27, "movdiri"), (28, "movdir64b"), (29, "enqcmd")),
        ),
        _AVX: ((9, "vaes"), (10, "vpclmulqdq")),
        _AVX512: (
            *((1, "avx512vbmi"), (6, "avx512vbmi2"), (11, "avx512vnni"), (12, "avx512bitalg")),
            (14, "avx512vpopcntdq"),
        ),
    },
    (7, 0, EDX): {
        _ALWAYS: ((5, "uintr"), (14, "serialize"), (16, "tsxldtrk"), (18, "pconfig")),
        _AVX512: ((8, "avx512vp2intersect"), (23, "avx512fp16")),
        _AMX: ((22, "amx-bf16"), (24, "amx-tile"), (25, "amx-int8")),
    },
    (7, 1, EAX): {
        _ALWAYS: ((3, "raoint"), (7, "cmpccxadd"), (22, "hreset"), (31, "movrs")),
        _AVX: ((0, "sha512"), (1, "sm3"), (2, "sm4"), (4, "avxvnni"), (23, "avxifma")),
        _AVX512: ((5, "avx512bf16"),),
        _AMX: ((21, "amx-fp16"),),
    },
    (7, 1, EDX): {
        _ALWAYS: ((14, "prefetchi"), (15, "usermsr")),
        _AVX: ((4, "avxvnniint8"), (5, "avxneconvert"), (10, "avxvnniint16")),
        _AVX512: ((19, "avx10.1"),),
        _AMX: ((8, "amx-complex"),),
        _APX: tuple((21, name) for name in ("egpr", "push2pop2", "ppx", "ndd", "ccmp", "nf", "cf", "zu")),
    },
    (13, 1, EAX): {_AVX: ((0, "xsaveopt"), (1, "xsavec"), (3, "xsaves"))},
    (20, 0, EBX): {_ALWAYS: ((4, "ptwrite"),)},
    (25, 0, EBX): {_ALWAYS: ((2, "widekl"),)},
    (30, 1, EAX): {_AMX: ((4, "amx-fp8"), (6, "amx-tf32"), (7, "amx-avx512"), (8, "amx-movrs"))},
    (_EXTENDED + 1, 0, EDX): {_ALWAYS: ((29, "64bit"),)},
    (_EXTENDED + 1, 0, ECX): {
        _ALWAYS: (
            *((0, "sahf"), (5, "lzcnt"), (6, "sse4a"), (8, "prfchw"), (15, "lwp"), (21, "tbm")),
            (29, "mwaitx"),
        ),
        _AVX: ((11, "xop"), (16, "fma4")),
    },
    (_EXTENDED + 8, 0, EBX): {_ALWAYS: ((0, "clzero"), (4, "rdpru"), (9, "wbnoinvd"))},
}
_SLOW_AVX = ("corei7-avx", "core-avx-i", "sandybridge", "ivybridge")  # CPUs for which Numba disables AVX
_VERSIONED = {"avx10.2": (36, 2)}  # leaf with a version in the lowest byte of EBX, and the min. version
_SAVES, _AVX_BIT = 27, 28  # bits of leaf 1 ECX: OSXSAVE, AVX

_INTEL = {  # names of family 6, by model
    **dict.fromkeys((0x1A, 0x1E, 0x1F, 0x2E), "nehalem"),
    **dict.fromkeys((0x25, 0x2C, 0x2F), "westmere"),
    **dict.fromkeys((0x2A, 0x2D), "sandybridge"),
    **dict.fromkeys((0x3A, 0x3E), "ivybridge"),
    **dict.fromkeys((0x3C, 0x3F, 0x45, 0x46), "haswell"),
    **dict.fromkeys((0x3D, 0x47, 0x4F, 0x56), "broadwell"),
    **dict.fromkeys((0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6), "skylake"),
    **dict.fromkeys((0x7D, 0x7E), "icelake-client"),
    **dict.fromkeys((0x6A, 0x6C), "icelake-server"),
    **dict.fromkeys((0x8C, 0x8D), "tigerlake"),
    **dict.fromkeys((0x97, 0x9A), "alderlake"),
    **dict.fromkeys((0xB7, 0xBA, 0xBF), "raptorlake"),
    0xA7: "rocketlake",
    0x8F: "sapphirerapids",
    0xCF: "emeraldrapids",
    0xAD: "graniterapids",
    0xAE: "graniterapids-d",
}
_SKYLAKE_SERVER = 0x55  # a model of three CPU types, distinguished by features, the newest first
_OF_SKYLAKE = (("avx512bf16", "cooperlake"), ("avx512vnni", "cascadelake"), ("avx512vl", "skylake-avx512"))
_AMD = (  # family, first and last model, name
    (0x17, 0x00, 0x2F, "znver1"),
    (0x17, 0x30, 0x3F, "znver2"),
    (0x17, 0x60, 0x7F, "znver2"),
    (0x19, 0x00, 0x0F, "znver3"),
    (0x19, 0x20, 0x5F, "znver3"),
    (0x19, 0x10, 0x1F, "znver4"),
    (0x19, 0x60, 0x7F, "znver4"),
    (0x19, 0xA0, 0xAF, "znver4"),
    (0x1A, 0x00, 0x4F, "znver5"),
    (0x1A, 0x60, 0x77, "znver5"),
)


@functools.cache
def host() -> Host:
    """Return the CPU of this process; features are empty where LLVM knows none."""
    return _asked() or _by_llvm()


def chosen(environ: Mapping[str, str]) -> tuple[str, dict[str, bool] | str]:
    """Return name and features of the CPU for code generation: the host's, unless Numba's variables name another.

    A CPU that is named without features gets those that LLVM knows for it. Numba would add the host's, which may be
    wrong for that CPU.
    """
    stated, features_of_it = environ.get("NUMBA_CPU_NAME"), environ.get("NUMBA_CPU_FEATURES")
    if stated or features_of_it is not None:
        return stated or host().name, features_of_it or ""
    name = host().name
    features = host().features
    if environ.get("NUMBA_ENABLE_AVX", "0" if name in _SLOW_AVX else "1") == "0":
        features = {key: on and not key.startswith("avx") for key, on in features.items()}
    return name, features


def flat(features: dict[str, bool]) -> str:
    """Format features like LLVM's options: enabled ones with a plus, others with a minus."""
    return ",".join(f"{'+' if there else '-'}{name}" for name, there in sorted(features.items()))


def features_of_x86() -> frozenset[str]:
    """Return all x86-64 features in the tables here."""
    return frozenset(_features(lambda leaf, subleaf: (0, 0, 0, 0), 0))


def described(cpuid: Cpuid, saved: int) -> Host | None:
    """Identify a CPU by CPUID; None if its name is in no table.

    Parameters
    ----------
    saved : int
        XCR0: register state that the system saves; only used for CPUs that have XCR0.
    """
    features = _features(cpuid, saved)
    highest, *text = cpuid(0, 0)
    vendor = b"".join(text[each - EBX].to_bytes(4, "little") for each in (EBX, EDX, ECX))
    family, model = _family_and_model(cpuid(1, 0)[EAX])
    if vendor == b"GenuineIntel" and family == 6:
        told = _OF_SKYLAKE if model == _SKYLAKE_SERVER else ()
        name = _INTEL.get(model) or next((name for feature, name in told if features[feature]), None)
    elif vendor == b"AuthenticAMD":
        name = next((each for of, first, last, each in _AMD if of == family and first <= model <= last), None)
    else:
        name = None
    return Host(name, features) if name else None


def _features(cpuid: Cpuid, saved: int) -> dict[str, bool]:
    basic, extended = cpuid(0, 0)[EAX], cpuid(_EXTENDED, 0)[EAX]
    ecx = cpuid(1, 0)[ECX]
    saves = bool(ecx >> _SAVES & 1)
    has_avx = saves and bool(ecx >> _AVX_BIT & 1)

    def register(leaf: int, subleaf: int, which: int) -> int:
        if leaf > (extended if leaf & _EXTENDED else basic):
            return 0
        if (leaf, subleaf) == (7, 1) and cpuid(7, 0)[EAX] < 1:
            return 0
        return cpuid(leaf, subleaf)[which]

    def usable(need: int) -> bool:
        bits = _NEEDS[need]
        if need == _ALWAYS:
            return True
        return saves and saved & bits == bits and (has_avx or need in (_XSAVE, _AMX, _APX))

    features = {}
    for place, groups in _BITS.items():
        value = register(*place)
        for need, names in groups.items():
            features.update({name: usable(need) and bool(value >> bit & 1) for bit, name in names})
    for name, (leaf, least) in _VERSIONED.items():
        features[name] = features["avx10.1"] and register(leaf, 0, EBX) & 0xFF >= least
    return features


def _family_and_model(signature: int) -> tuple[int, int]:
    family, model = signature >> 8 & 15, signature >> 4 & 15
    if family in (6, 15):
        model |= (signature >> 16 & 15) << 4
    return (family + (signature >> 20 & 255) if family == 15 else family), model


# Arm features that LLVM does not detect but code may use: Linux's names and LLVM's names.
_OF_ARM = {
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "asimdhp": "fullfp16",
    "asimdrdm": "rdm",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "lrcpc": "rcpc",
}


def features_from_cpuinfo(cpuinfo: str) -> dict[str, bool]:
    """Return the features of an Arm CPU that LLVM omits, from the text of /proc/cpuinfo."""
    line = next((line for line in cpuinfo.splitlines() if line.startswith("Features")), "")
    there = set(line.partition(":")[2].split())
    return {ours: name in there for name, ours in _OF_ARM.items()} if there else {}


def _by_llvm() -> Host:
    import llvmlite.binding as llvm  # the import takes 50 ms and 45 MB

    name = llvm.get_host_cpu_name()
    try:
        features = dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM knows no features of this host
        return Host(name, {})
    if sys.platform == "linux" and platform.machine() == "aarch64":
        with contextlib.suppress(OSError):
            features = {**features_from_cpuinfo(CPUINFO.read_text()), **features}
    return Host(name, features)


# --- CPUID and XGETBV -----------------------------------------------------------------------------------------------

_CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
"""push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid; mov [r8], eax; mov [r8+4], ebx; mov [r8+8], ecx;
mov [r8+12], edx; pop rbx; ret"""
_XGETBV = bytes.fromhex("31c9 0f01d0 c3")  # xor ecx, ecx; xgetbv; ret
_PLACE = 64  # offset of the second function


def _asked() -> Host | None:
    """Identify the CPU by its instructions; None if they cannot be executed, or its name is in no table."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize <= 1 << 32:
        return None
    code = _CPUID.ljust(_PLACE, b"\0") + _XGETBV
    try:
        address, memory = place_code(len(code), lambda address: code)
    except NoExecutableMemory:
        return None
    ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(address)
    registers = (ctypes.c_uint32 * 4)()

    def cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        ask(leaf, subleaf, ctypes.addressof(registers))
        return registers[EAX], registers[EBX], registers[ECX], registers[EDX]

    has_xgetbv = bool(cpuid(1, 0)[ECX] >> _SAVES & 1)
    saved = ctypes.CFUNCTYPE(ctypes.c_uint32)(address + _PLACE)() if has_xgetbv else 0
    found = described(cpuid, saved)
    del memory  # the code had to stay until here
    return found
