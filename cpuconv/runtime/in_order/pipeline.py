"""Instructions of an in-order Arm core with two issue slots (Cortex-A53, A55): registers, memory, port and timing.

LLVM's model of Cortex-A55 has two 128-bit FMAs a cycle and loads of 16 bytes that cost nothing. The core has one FMA a
cycle. A load of 16 bytes takes two cycles in which nothing else issues. A load of up to eight bytes, and the insertion
of a general register into a vector, issue together with an FMA.
Sources: ncnn's document on dual issue of Cortex-A53 and A55, XNNPACK's kernels for these cores, onnxruntime #10754.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

IN_ORDER = ("cortex-a35", "cortex-a53", "cortex-a55", "cortex-a510", "cortex-a520")
ISSUED = 2  # instructions per cycle
FLAGS = "flags"
_ITERATIONS = 30
_REGISTER = re.compile(r"\b(?:([vqdsbhxw])(\d+)|(sp))\b")
_WIDE = re.compile(r"\bq\d+")
_ELEMENT = re.compile(r"\{?\s*v\d+\.\w+\s*\}?\[")
_INSERTED = re.compile(r"v\d+\.\w+\[\d+\], [wx]\d+$")
_ADDRESS = re.compile(r"\[(x\d+|sp)(?:, #(-?\d+|-?0x[0-9a-f]+))?\]$")
_BYTES = {"q": 16, "d": 8, "x": 8, "s": 4, "w": 4, "h": 2, "b": 1}
_MULTIPLIES = ("fml", "fmul", "fadd", "fsub", "fmadd", "fma", "sdot", "udot", "usdot")
_ADDS_TO_RESULT = {
    *("fmla", "fmls", "fmlal", "fmlal2", "mla", "mls", "sdot", "udot", "usdot", "smmla", "ummla", "usmmla"),
    *("bfdot", "bfmmla", "movk", "bfi", "bfxil", "bit", "bif", "bsl", "sli", "sri", "xtn2", "fcvtn2", "ssra", "usra"),
}
_NO_RESULT = {"b", "br", "ret", "cbz", "cbnz", "tbz", "tbnz", "prfm", "prfum", "cmp", "cmn", "tst", "fcmp", "nop"}
_SET_FLAGS = {"cmp", "cmn", "tst", "subs", "adds", "ands", "fcmp"}
_READ_FLAGS = {"csel", "csinc", "csinv", "csneg", "cset", "csetm", "cinc", "fcsel"}
_MOVES = {
    *("ldr", "ldrb", "ldrh", "ldrsw", "ldrsb", "ldrsh", "ldur", "ldp", "ld1", "ld1r"),
    *("str", "strb", "strh", "stur", "stp", "st1", "prfm", "prfum"),
}
_COMPUTES = {  # the first operand is the result, the others are read
    *("add", "sub", "neg", "mul", "mneg", "madd", "msub", "smull", "umull", "sdiv", "udiv", "and", "orr", "eor", "bic"),
    *("orn", "eon", "mvn", "lsl", "lsr", "asr", "ror", "sxtw", "uxtw", "ubfx", "sbfx", "ubfiz", "sbfiz", "mov", "movi"),
    *("mvni", "movz", "movn", "fmov", "dup", "ins", "ext", "zip1", "zip2", "uzp1", "uzp2", "trn1", "trn2", "rev64"),
    *("fmul", "fadd", "fsub", "fneg", "fabs", "fmax", "fmin", "fmaxnm", "fminnm", "fdiv", "fmadd", "fmsub", "fnmul"),
    *("frecpe", "frecps", "frinti", "frintn", "fcvtns", "fcvtzs", "fcvtl", "fcvtl2", "fcvtn", "scvtf", "ucvtf", "shl"),
    *("sshr", "ushr", "sshll", "ushll", "sshll2", "ushll2", "xtn", "fcmgt", "fcmge", "fcmeq", "cmgt", "cmge", "cmeq"),
    *("smax", "smin", "umax", "umin", "umov", "smov"),
}
_KNOWN = (_COMPUTES | _ADDS_TO_RESULT | _SET_FLAGS | _READ_FLAGS | _MOVES | {"nop"}) - {"b"}


class Access(NamedTuple):
    """A memory access; bytes from `offset` after the base register, an unknown place without one."""

    stores: bool
    base: str
    offset: int
    bytes: int


class Instruction(NamedTuple):
    """Registers, memory, port and timing of an instruction."""

    results: tuple[str, ...]
    operands: tuple[str, ...]
    port: str  # "memory", "vector", "insertion" or "integer"
    cycles: int  # for which it occupies the port
    latency: int
    alone: bool  # whether it issues alone
    access: Access | None = None
    fixed: bool = False  # it stays in its place: a branch, a call, a relocation or an unknown instruction


def read(line: str) -> Instruction:
    """Read an instruction of AArch64 assembly."""
    name, _, rest = line.partition(" ")
    registers = tuple(_registers(rest))
    moves = name.startswith(("ld", "st"))
    count = 0 if name.startswith("st") or name.startswith("b.") or name in _NO_RESULT else 2 if name == "ldp" else 1
    results, operands = registers[:count], registers[count:]
    inserts = name in ("mov", "fmov", "ins", "ld1") and bool(_ELEMENT.match(rest))
    modifies = name in ("orr", "bic") and rest.startswith("v") and "#" in rest
    if name in _ADDS_TO_RESULT or inserts or modifies:
        operands = registers
    if name in _SET_FLAGS:
        results = (*results, FLAGS)
    if name.startswith("b.") or name in _READ_FLAGS:
        operands = (*operands, FLAGS)
    if moves and ("!" in rest or "], " in rest):  # the address register is written too
        results = (*results, *_registers(rest[rest.index("[", 1) :])[:1])
    several = rest.startswith("{") and rest.partition("}")[0].count("v") > 1
    fixed = name not in _KNOWN or ":" in rest or several or rest.startswith(("xzr", "wzr")) and count > 0
    fixed |= "sp" in results  # places below it are free then, whatever register their address is in
    fixed |= moves and "[" not in rest  # a literal, relative to the instruction
    wide = len(_WIDE.findall(rest.partition("[")[0])) if moves else 0
    if moves or name in ("prfm", "prfum"):
        latency = 1 if not name.startswith("ld") else 4 if wide else 3
        access = _access(name, rest) if moves else None
        return Instruction(results, operands, "memory", max(1, 2 * wide), latency, wide > 0, access, fixed)
    if inserts and _INSERTED.match(rest):
        return Instruction(results, operands, "insertion", 1, 2, False, None, fixed)
    if re.search(r"\b[vqdsbh]\d+", rest):
        if name == "fdiv":
            return Instruction(results, operands, "vector", 10, 13, False, None, fixed)
        latency = 4 if name.startswith(_MULTIPLIES) else 2
        return Instruction(results, operands, "vector", 1, latency, False, None, fixed)
    return Instruction(results, operands, "integer", 1, 1, False, None, fixed)


def _registers(text: str) -> list[str]:
    found = _REGISTER.findall(text)
    return [stack or ("x" if kind in "xw" else "v") + number for kind, number, stack in found]


def _access(name: str, rest: str) -> Access:
    """The place that a load or store accesses."""
    stores = name.startswith("st")
    found = _ADDRESS.search(rest)
    if found is None or rest.startswith("{"):
        return Access(stores, "", 0, 0)
    size = _BYTES.get(rest[0], 16) * (2 if name.endswith("p") else 1)
    return Access(stores, found[1], int(found[2] or "0", 0), size)


def cycles(body: Sequence[Instruction], iterations: int = _ITERATIONS) -> float:
    """Cycles per iteration of a loop in its steady state, the second half of `iterations`."""
    ready: dict[str, int] = {}
    free = dict.fromkeys(("memory", "vector", "insertion", "integer"), 0)
    now = issued = blocked = 0
    ends = []
    for _ in range(iterations):
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
    half = iterations // 2
    return (ends[-1] - ends[half - 1]) / (iterations - half)
