"""Order of the instructions of a function for in-order cores, applied to its assembly text and to its object code.

Both come from the same LLVM module, so that instruction i of the text is word i of the object code. An instruction of
AArch64 has 32 bits, none of which depends on its place, but for branches and relocations, which stay where they are.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from cpuconv.runtime.code.loading.object_file import place_of_code
from cpuconv.runtime.in_order.pipeline import read
from cpuconv.runtime.in_order.scheduling import order_of

_LABEL = re.compile(r"^([\w.$]+):")
_ALIGNMENT = re.compile(r"\.p2align (\d+)(?:, *\w*(?:, *(\d+))?)?")
_TARGET = re.compile(r"[\w.$]+$")
_FIRST_REGISTER = re.compile(r"(?!prf|c?cmp|c?cmn|tst|fc?cmp|b)\w+ (?:\{ )?(?:[vqdsbhxw](\d+)|sp|[xw]zr)\b")
_WORD = 4  # bytes


class _Line(NamedTuple):
    number: int  # of the line in the text
    text: str


def reordered(assembly: str) -> tuple[str, list[int]]:
    """Return the text of a function with its instructions in a faster order, and by place the index of each."""
    lines = assembly.splitlines()
    found: list[_Line] = []  # all instructions
    blocks: list[list[int]] = [[]]  # instructions between labels and fixed instructions
    labels: list[str] = [""]  # the label at the start of each block, or ""
    label = ""
    for number, line in enumerate(lines):
        text = clean(line)
        if match := _LABEL.match(text):
            label = match[1]
            blocks.append([])
            labels.append(label)
        elif text.startswith("."):
            blocks.append([])
            labels.append("")
        elif text:
            blocks[-1].append(len(found))
            found.append(_Line(number, text))
            if read(text).fixed:
                blocks.append([])
                labels.append("")
    order = list(range(len(found)))
    for block, start in zip(blocks, labels, strict=True):
        body = [read(found[i].text) for i in block]
        last = found[block[-1]].text if block else ""
        rest = len(body) - bool(body and body[-1].fixed)
        loops = bool(start) and _TARGET.findall(last) == [start]
        if rest > 1:
            first = block[0]
            order[first : first + rest] = [first + i for i in order_of(body[:rest], loops)]
    for place, i in enumerate(order):
        lines[found[place].number] = "\t" + found[i].text
    return "\n".join(lines) + "\n", order


def reordered_code(code: bytes, assembly: str) -> bytes:
    """Return object code with the order of `reordered`; unchanged where the text does not have its size."""
    text, order = reordered(assembly)
    places = _places(text)
    start, size = place_of_code(code)
    words = list(struct.unpack_from(f"<{size // _WORD}I", code, start))
    at = [place // _WORD for place in places[:-1]]
    if places[-1] != size or not all(map(_agree, _instructions(assembly), (words[place] for place in at))):
        return code
    moved = words.copy()
    for place, i in zip(at, order, strict=True):
        moved[place] = words[at[i]]
    return code[:start] + struct.pack(f"<{len(moved)}I", *moved) + code[start + size :]


def _instructions(assembly: str) -> list[str]:
    lines = map(clean, assembly.splitlines())
    return [line for line in lines if line and not line.startswith(".") and not _LABEL.match(line)]


def _agree(text: str, word: int) -> bool:
    """Whether a word can be this instruction: its lowest bits number the first register, where that is read or set."""
    found = _FIRST_REGISTER.match(text)
    return found is None or word & 31 == int(found[1] or 31)


def _places(assembly: str) -> list[int]:
    """The byte offset of each instruction, and of the end."""
    found: list[int] = []
    offset, code = 0, False
    for line in map(clean, assembly.splitlines()):
        if line == ".text" or line.startswith(".section"):
            code = line == ".text"
        elif code and (match := _ALIGNMENT.match(line)):
            padding = -offset % (1 << int(match[1]))
            offset += padding if padding <= int(match[2] or padding) else 0
        elif line and not line.startswith(".") and not _LABEL.match(line):
            found.append(offset)
            offset += _WORD
    return [*found, offset]


def clean(line: str) -> str:
    """Return a line without comments, with single spaces."""
    return " ".join(line.split("//")[0].split())
