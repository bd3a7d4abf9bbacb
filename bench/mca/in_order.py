"""Cycles of a loop on an in-order core with two issue slots (Cortex-A53, A55), simulated instruction by instruction.

LLVM's model of Cortex-A55 has two 128-bit FMAs a cycle and loads of 16 bytes that cost nothing. The core has one FMA a
cycle. A load of 16 bytes takes two cycles in which nothing else issues; a load of up to eight bytes issues together
with an FMA.
Sources: ncnn's and XNNPACK's notes on their kernels for this core, onnxruntime #10754.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

ISSUED = 2  # instructions per cycle
_TURNS = 30
_REGISTER = re.compile(r"\b(?:([vqdsbhxw])(\d+)|(sp))\b")
_WIDE = re.compile(r"\bq\d+")
_MULTIPLIES = ("fml", "fmul", "fadd", "fsub", "fmadd", "fma", "sdot", "udot", "usdot")
_ADDS_TO_RESULT = (
    "fmla",
    "fmls",
    "fmlal",
    "mla",
    "sdot",
    "udot",
    "usdot",
    "smmla",
    "ummla",
    "usmmla",
    "bfdot",
    "bfmmla",
)
_NO_RESULT = ("b", "br", "ret", "cbz", "cbnz", "tbz", "tbnz", "prfm", "cmp", "tst", "nop")
FLAGS = "flags"


class Instruction(NamedTuple):
    """Registers, port and timing of an instruction."""

    results: tuple[str, ...]
    operands: tuple[str, ...]
    port: str  # "memory", "vector" or "integer"
    cycles: int  # for which it occupies the port
    latency: int
    alone: bool  # nothing else issues meanwhile


def read(line: str) -> Instruction:
    """Read an instruction of AArch64 assembly."""
    name, _, rest = line.partition(" ")
    registers = tuple(_registers(rest))
    moves = name.startswith(("ld", "st"))
    count = 0 if name.startswith("st") or name.startswith("b.") or name in _NO_RESULT else 2 if name == "ldp" else 1
    results, operands = registers[:count], registers[count:]
    inserts = name in ("mov", "ins", "ld1") and bool(re.match(r"\{?\s*v\d+\.\w+\s*\}?\[", rest))
    if name in _ADDS_TO_RESULT or inserts:
        operands = registers
    if name in ("cmp", "tst", "subs", "adds", "fcmp"):
        results = (*results, FLAGS)
    if name.startswith("b.") or name in ("csel", "csinc", "cset"):
        operands = (*operands, FLAGS)
    if moves and ("!" in rest or "], " in rest):  # the address register is written too
        results = (*results, *_registers(rest[rest.index("[") :])[:1])
    wide = len(_WIDE.findall(rest.partition("[")[0])) if moves else 0
    if moves or name == "prfm":
        latency = 1 if not name.startswith("ld") else 4 if wide else 3
        return Instruction(results, operands, "memory", max(1, 2 * wide), latency, wide > 0)
    if re.search(r"\b[vqdsbh]\d+", rest):
        if name == "fdiv":
            return Instruction(results, operands, "vector", 10, 13, False)
        return Instruction(results, operands, "vector", 1, 4 if name.startswith(_MULTIPLIES) else 2, False)
    return Instruction(results, operands, "integer", 1, 1, False)


def _registers(text: str) -> list[str]:
    found = _REGISTER.findall(text)
    return [stack or ("x" if kind in "xw" else "v") + number for kind, number, stack in found]


def cycles(lines: Sequence[str]) -> float:
    """Cycles per turn of a loop, in its steady state."""
    body = [read(line) for line in lines]
    ready: dict[str, int] = {}
    free = dict.fromkeys(("memory", "vector", "integer"), 0)
    now = issued = blocked = 0
    ends = []
    for _ in range(_TURNS):
        for each in body:
            at = max(now, blocked, free[each.port], *(ready.get(name, 0) for name in each.operands))
            if at > now:
                now, issued = at, 0
            if issued == ISSUED or (each.alone and issued):
                now, issued = now + 1, 0
            issued += 1
            if each.port != "integer":
                free[each.port] = now + each.cycles
            if each.alone:
                blocked = now + each.cycles
            ready.update(dict.fromkeys(each.results, now + each.latency))
        ends.append(now)
    half = _TURNS // 2
    return (ends[-1] - ends[half - 1]) / (_TURNS - half)
