"""CPU features of the target for which code is generated.

Query a feature before use. LLVM ends the process on an intrinsic that its target lacks; for a conversion it emits a
call of a function that is defined nowhere.
"""

from __future__ import annotations

import ctypes
import functools
import sys

from cpuconv.runtime.target import target, target_machine

_ROUNDS = """
define void @probe(<8 x float>* %p, <8 x {kind}>* %q) {{
  %a = load <8 x float>, <8 x float>* %p
  %b = fptrunc <8 x float> %a to <8 x {kind}>
  store <8 x {kind}> %b, <8 x {kind}>* %q
  ret void
}}
"""
_ADDS = """
define void @probe(<{kind}>* %p) {{
  %a = load <{kind}>, <{kind}>* %p
  %b = add <{kind}> %a, %a
  store <{kind}> %b, <{kind}>* %p
  ret void
}}
"""
# Probes for a CPU that is known by name alone: LLVM IR, and a text that is in its assembly if the CPU has the feature.
_TELLING: dict[str, tuple[str, str]] = {
    "avx2": (_ADDS.format(kind="8 x i32"), "%ymm"),
    "avx512bw": (_ADDS.format(kind="32 x i16"), "%zmm"),
    "f16c": (_ROUNDS.format(kind="half"), "cvtps2ph"),
    "avx512bf16": (_ROUNDS.format(kind="bfloat"), "cvtneps2bf16"),
}

_ARCH_PRCTL, _REQUEST, _GRANTED, _TILE_DATA = 158, 0x1023, 0x1022, 18  # arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
_VNNI = ("avx512f", "avx512vnni")
_BF16 = (*_VNNI, "avx512bf16")
_NEON8 = ("neon", "dotprod", "fullfp16")
_NAMED: dict[str, tuple[str, ...]] = {
    "cascadelake": _VNNI,
    "icelake-client": _VNNI,
    "icelake-server": _VNNI,
    "rocketlake": _VNNI,
    "tigerlake": _VNNI,
    "cooperlake": _BF16,
    "sapphirerapids": _BF16,
    "graniterapids": _BF16,
    "diamondrapids": (*_BF16, "avxvnni", "avxvnniint8", "avx10.2"),
    "znver4": _BF16,
    "znver5": (*_BF16, "avxvnni"),
    "alderlake": ("fma", "avxvnni"),
    "raptorlake": ("fma", "avxvnni"),
    "arrowlake": ("fma", "avxvnni", "avxvnniint8"),
    "cortex-a55": _NEON8,
    "cortex-a75": _NEON8,
    "cortex-a76": _NEON8,
    "cortex-a78": _NEON8,
    "neoverse-n1": _NEON8,
    "neoverse-v1": (*_NEON8, "i8mm", "bf16", "fp16fml"),
    "neoverse-n2": (*_NEON8, "i8mm", "bf16", "fp16fml"),
    "neoverse-v2": (*_NEON8, "i8mm", "bf16", "fp16fml"),
    "apple-m1": (*_NEON8, "fp16fml"),
    "apple-m2": (*_NEON8, "i8mm", "bf16", "fp16fml"),
}
"""Features of CPUs that are given by name alone, as in cross builds and tests (source: LLVM's tables of CPUs).

AMX is left out: for a CPU that is only named, no permission to use its tiles can be requested.
"""


@functools.cache
def has_feature(feature: str) -> bool:
    """Whether the target has a feature, by LLVM's name; for a CPU that is only named, False where this is unknown."""
    _, cpu, features = target()
    if features:
        return f"+{feature}" in features.split(",")
    if feature not in _TELLING:
        return feature in _NAMED.get(cpu, ())
    import llvmlite.binding as llvm

    source, instruction = _TELLING[feature]
    return instruction in target_machine().emit_assembly(llvm.parse_assembly(source))


@functools.cache
def rounds_to_half() -> bool:
    """Whether instructions convert between float32 and float16."""
    return has_feature("f16c") or target()[0].startswith("aarch64")


@functools.lru_cache(maxsize=1)
def amx_permitted() -> bool:
    """Whether the CPU has AMX tiles and Linux grants their use to this process; this call requests the permission.

    The permission is per process: its threads and forked processes have it too.
    """
    if sys.platform != "linux" or not has_feature("amx-tile"):
        return False
    system = ctypes.CDLL(None, use_errno=True)
    if system.syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) != 0:
        return False
    mask = ctypes.c_uint64(0)
    return system.syscall(_ARCH_PRCTL, _GRANTED, ctypes.byref(mask)) == 0 and bool(mask.value >> _TILE_DATA & 1)
