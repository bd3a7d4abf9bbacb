"""Minimal object files: one section, the symbol of the function, and the undefined symbols.

Compilers add names that differ between compilations, unwinding tables, and padding. Without these, equal code gives
equal files, a third smaller.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cpuconv.runtime.code.loading import object_file
from cpuconv.runtime.code.loading.object_file import ABSOLUTE, UNDEFINED, Image

SYMBOL = "kernel"
_HEADER = struct.Struct("<6sBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_ENTRY = struct.Struct("<IBBHQQ")
_ADDEND = struct.Struct("<QQq")
_NAMES = (b"", b".text", b".rela.text", b".symtab", b".strtab", b".note.GNU-stack")
_CODE, _ADDENDS, _TABLE, _TEXTS = 1, 2, 3, 4
_PROGBITS, _SYMTAB, _STRTAB, _RELA = 1, 2, 3, 4
_ALLOCATED, _EXECUTABLE, _INFO_LINK = 2, 4, 0x40
_LOCAL, _GLOBAL, _NOTYPE, _FUNC, _SECTION_SYMBOL = 0, 1, 0, 2, 3
_FIRST_OTHERS = 2  # number of the leading symbols: the null symbol and the section


def stripped(content: bytes, symbol: str) -> bytes:
    """Return the object file with its function `symbol`, renamed to `SYMBOL`, and only what that needs.

    Raises
    ------
    Malformed, Unsupported
        As for `object_file.read`.
    """
    image = object_file.read(content)
    code = bytearray(image.veneers)
    for start, part in image.content:
        code[start : start + len(part)] = part
    names = [SYMBOL, *image.names]
    texts, places = _texts([each.encode() for each in names])
    number = {name: _FIRST_OTHERS + index for index, name in enumerate(names)}
    addends = b"".join(_relocation(image, each, number) for each in image.relocations)
    table = _symbols(places[0], image.offset(symbol))
    for place in places[1:]:
        table += _ENTRY.pack(place, _GLOBAL << 4 | _NOTYPE, 0, UNDEFINED, 0, 0)
    return _file(image.machine, bytes(code), addends, table, texts)


def strip_to_code(content: bytes) -> tuple[int, bytes] | None:
    """Return ELF's architecture number and the code if `wrap_code` restores the object file from them; else None."""
    try:
        image = object_file.read(content)
    except (object_file.Malformed, object_file.Unsupported):
        return None
    code = b"".join(part for _, part in image.content)
    return (image.machine, code) if wrap_code(image.machine, code) == content else None


def wrap_code(machine: int, code: bytes) -> bytes:
    """Return the object file of a function without undefined symbols, as `stripped` returns it."""
    texts, places = _texts([SYMBOL.encode()])
    return _file(machine, code, b"", _symbols(places[0], 0), texts)


def _symbols(place: int, offset: int) -> bytes:
    """Return the null symbol, the section's, and the function's."""
    table = bytes(_ENTRY.size) + _ENTRY.pack(0, _LOCAL << 4 | _SECTION_SYMBOL, 0, _CODE, 0, 0)
    return table + _ENTRY.pack(place, _GLOBAL << 4 | _FUNC, 0, _CODE, offset, 0)


def _relocation(image: Image, each: object_file.Relocation, number: dict[str, int]) -> bytes:
    target = image.symbols[each.symbol]
    if target.section == UNDEFINED:
        symbol, addend = number[target.name], each.addend
    elif target.section == ABSOLUTE:
        raise object_file.Unsupported("an absolute symbol")
    else:
        symbol, addend = 1, each.addend + image.offsets[target.section] + target.value
    return _ADDEND.pack(image.offsets[each.section] + each.offset, symbol << 32 | each.kind, addend)


def _texts(names: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Return a string table, which begins with the empty name, and the offset of each name."""
    content, places = b"\0", []
    for name in names:
        places.append(len(content))
        content += name + b"\0"
    return content, places


def _file(machine: int, code: bytes, addends: bytes, table: bytes, texts: bytes) -> bytes:
    titles, places = _texts(_NAMES[1:])
    start = len(texts)
    texts += titles[1:]
    places = [0, *(start - 1 + place for place in places)]
    parts = (b"", code, addends, table, texts, b"")
    content, rows = bytearray(_HEADER.size), []
    kinds = (
        (0, 0, 0, 0, 0, 0),
        (_PROGBITS, _ALLOCATED | _EXECUTABLE, 0, 0, object_file.ALIGNMENT, 0),
        (_RELA, _INFO_LINK, _TABLE, _CODE, 8, _ADDEND.size),
        (_SYMTAB, 0, _TEXTS, _FIRST_OTHERS, 8, _ENTRY.size),
        (_STRTAB, 0, 0, 0, 1, 0),
        (_PROGBITS, 0, 0, 0, 1, 0),
    )
    for name, part, (kind, flags, link, info, alignment, size) in zip(places, parts, kinds, strict=True):
        content += bytes(-len(content) % max(alignment, 1))
        rows.append(
            _SECTION.pack(name, kind, flags, 0, len(content) if kind else 0, len(part), link, info, alignment, size)
        )
        content += part
    content += bytes(-len(content) % 8)
    header = _HEADER.pack(
        object_file.MAGIC, 1, 0, 0, object_file.RELOCATABLE, machine, 1, 0, 0, len(content), 0, _HEADER.size,
        0, 0, _SECTION.size, len(rows), _TEXTS,
    )  # fmt: skip
    content[: len(header)] = header
    return bytes(content) + b"".join(rows)
