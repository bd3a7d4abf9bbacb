"""Reading assembly text (x86 in AT&T or Intel syntax, aarch64): the hot loop, its FMAs, its vector stack traffic."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LABEL = re.compile(r"^([\w.$]+):")
_JUMP = re.compile(r"^(?:j[a-z]+|b(?:\.[a-z]+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#?\w+,)\s+([\w.$]+)$")
_FMA = re.compile(r"^(?:vf(?:n?m)(?:add|sub)\d*[ps]s|fml[as]|fn?m(?:add|sub))\b")
_DOT = re.compile(r"^(?:[su]+dot|[su]+mmla|bfdot|bfmmla|fmlal2?)\b")
_ARITHMETIC = re.compile(r"^f(?:add|sub|mul|neg|max|min)\w*\b.*\bv\d+|^v(?:add|sub|mul)ps\b")
_LOAD = re.compile(r"^ld\w*\s.*\b[vqds]\d+")
_VECTOR = re.compile(r"%?\b[xyz]mm\d+\b|\b[vq]\d+\b")
_ADDRESS = re.compile(r"\(([^)]*)\)|\[([^\]]*)\]")
_WRITE_RBP = re.compile(r",\s*%rbp$|^(?!cmp|test|push)\w+\s+(?:rbp\b|%rbp$)")
_WRITE_X29 = re.compile(r"^(?!cmp|st|tst)\w+\s+x29\b|\[x29[^\]]*\]!|\[x29\],")


def hot_loop(assembly: str) -> list[str]:
    """Instructions of the innermost loop with the most FMAs, from its label to its backward branch; [] without one."""
    return max(loops(assembly), key=count_fma, default=[])


def loops(assembly: str) -> list[list[str]]:
    """Instructions of every innermost loop: what lies between a label and the last branch back to it."""
    lines = [_clean(line) for line in assembly.splitlines()]
    labels: dict[str, int] = {}
    ends: dict[int, int] = {}
    for number, line in enumerate(lines):
        if found := _LABEL.match(line):
            labels[found[1]] = number
        elif (found := _JUMP.match(line)) and found[1] in labels:
            ends[labels[found[1]]] = number
    innermost = [
        (start, end)
        for start, end in ends.items()
        if not any(start < other and last <= end for other, last in ends.items())
    ]
    return [[line for line in lines[start : end + 1] if _is_instruction(line)] for start, end in innermost]


def blocks(assembly: str) -> list[list[str]]:
    """Instructions from each label to the next."""
    found: list[list[str]] = [[]]
    for line in map(_clean, assembly.splitlines()):
        if _LABEL.match(line):
            found.append([])
        elif _is_instruction(line):
            found[-1].append(line)
    return found


def count_fma(lines: Iterable[str]) -> int:
    """FMA instructions, of vectors or scalars."""
    return sum(bool(_FMA.match(line)) for line in lines)


def vector_spills(lines: list[str]) -> list[str]:
    """Instructions of a loop that move vector registers to or from the stack.

    rbp and x29 count as the stack's where the loop neither changes nor indexes them; else they are ordinary registers.
    """
    stack = {"rsp", "sp"}
    if not any(_WRITE_RBP.search(line) for line in lines):
        stack.add("rbp")
    if not any(_WRITE_X29.search(line) for line in lines):
        stack.add("x29")
    return [line for line in lines if _VECTOR.search(line) and _on_stack(line, stack)]


def _clean(line: str) -> str:
    """The line without its comment, with single spaces."""
    return " ".join(re.split(r"\s#\s|##|//|;", line)[0].split())


def _is_instruction(line: str) -> bool:
    return bool(line) and not line.startswith(".") and not _LABEL.match(line)


def _on_stack(line: str, stack: set[str]) -> bool:
    for groups in _ADDRESS.findall(line):
        registers = re.findall(r"\b(?:r\w+|e\w+|x\d+|sp)\b", "".join(groups))
        if registers and registers[0] in stack and (len(registers) == 1 or registers[0] in ("rsp", "sp")):
            return True
    return False


def body_of(assembly: str) -> list[str]:
    """Instructions of the hot loop; of straight-line code, its longest block."""
    return hot_loop(assembly) if count_arithmetic(hot_loop(assembly)) else max(blocks(assembly), key=count_arithmetic)


def count_arithmetic(lines: Iterable[str]) -> int:
    """Vector instructions that compute: multiply-adds, dot products, additions and products of float32."""
    return sum(bool(_FMA.match(line) or _DOT.match(line) or _ARITHMETIC.match(line)) for line in lines)


def vector_loads(lines: Iterable[str]) -> int:
    """Instructions that load vector registers (aarch64)."""
    return sum(bool(_LOAD.match(line)) for line in lines)
