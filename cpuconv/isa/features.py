"""What the CPU offers that code is generated for.

LLVM ends the process on an intrinsic that its target lacks, and for a conversion calls a function that is nowhere: ask
first.
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from cpuconv.runtime.target import target, target_machine

_ROUNDS = """
define void @probe(<8 x float>* %p, <8 x {kind}>* %q) {{
  %a = load <8 x float>, <8 x float>* %p
  %b = fptrunc <8 x float> %a to <8 x {kind}>
  store <8 x {kind}> %b, <8 x {kind}>* %q
  ret void
}}
"""
# Where a CPU is known by its name alone, LLVM tells what it has by the code it makes: source, and what is in the code.
_TELLING: dict[str, tuple[str, str]] = {
    "f16c": (_ROUNDS.format(kind="half"), "cvtps2ph"),
    "avx512bf16": (_ROUNDS.format(kind="bfloat"), "cvtneps2bf16"),
}


@functools.cache
def offered(feature: str) -> bool:
    """Whether the target has the feature of that name of LLVM's; of a CPU that is but named, no more than is known."""
    _, _, features = target()
    if features:
        return f"+{feature}" in features.split(",")
    if feature not in _TELLING:
        return False
    source, told = _TELLING[feature]
    return told in target_machine().emit_assembly(llvm.parse_assembly(source))


@functools.cache
def rounds_to_half() -> bool:
    """Whether float32 numbers become float16 ones, and these float32, by instructions."""
    return offered("f16c") or target()[0].startswith("aarch64")
