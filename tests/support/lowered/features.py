"""CPUs of x86 by LLVM's names, and the features that code for them may use."""

from __future__ import annotations

_AVX2 = ("avx2", "fma", "bmi2", "lzcnt", "movbe", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ICELAKE = (*_AVX512, "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni", "gfni", "vaes")
_ZEN4 = (*_ICELAKE, "avx512bf16")

FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64": (),
    "haswell": _AVX2,
    "skylake-avx512": _AVX512,
    "znver4": _ZEN4,
    "znver5": (*_ZEN4, "avxvnni"),
    "arrowlake": (*_AVX2, "avxvnni", "avxvnniint8"),
    "diamondrapids": (*_ZEN4, "avxvnni", "avxvnniint8", "avx10.2"),
    "sapphirerapids": (*_ZEN4, "avxvnni", "avx512fp16", "amx-tile", "amx-int8", "amx-bf16"),
}
