"""Reader of relocatable 64-bit ELF files, as LLVM writes them; it places them at an address without a linker.

Only read-only sections are placed. Unwinding tables are dropped, as no function called by compiled kernels raises. All
fields of a file are checked against its size before use.

Sources: System V ABI, its supplements for AMD64 and for the Arm 64-bit architecture (AAELF64).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from baselib.data_classes import dataclass

MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
RELOCATABLE = 1
_HEADER, _SECTION, _SYMBOL, _ADDEND = (
    struct.Struct(f"<{each}") for each in ("16xHH20xQ10xHHH", "IIQ8xQQIIQ8x", "IBxHQ8x", "QQq")
)
_SYMBOLS, _ADDENDS, _ZEROS, _WITHOUT_ADDENDS = 2, 4, 8, 9  # section types
_WRITE, _LOADED, _EXECUTED, _LOCAL_TO_THREAD = 1, 2, 4, 1 << 10  # section flags
_UNWINDING = (".eh_frame", ".note", ".gcc_except_table")  # name prefixes of sections that no code reads
UNDEFINED, ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00  # section numbers of symbols
ALIGNMENT = 64  # min. alignment of a section, in bytes: a cache line
_MAX_BYTES = 1 << 28  # max. size of an image

X86, ARM = 62, 183  # ELF's numbers of architectures
_PAGE = 12  # bits of the offset in a page, for ADRP


class Malformed(ValueError):
    """The file is damaged, or not an object file."""


class Unsupported(ValueError):
    """The file needs a full linker."""


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    start: int
    size: int
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


class Relocation(NamedTuple):
    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class Image:
    """A parsed object file with the offsets of its sections.

    Attributes
    ----------
    machine : int
        ELF's number of the architecture.
    size : int
        Size in memory, in bytes.
    names : tuple of str
        Undefined symbols, which other code must define.
    content : tuple
        Offset and bytes of each section.
    offsets : dict of int
        Offset of each section, by section number.
    symbols, relocations : tuple
        In the order of the file.
    veneers : int
        Offset of the first veneer; there is one for each of `names`.
    """

    machine: int
    size: int
    names: tuple[str, ...]
    content: tuple[tuple[int, bytes], ...]
    offsets: dict[int, int]
    symbols: tuple[_Symbol, ...]
    relocations: tuple[Relocation, ...]
    veneers: int

    def offset(self, symbol: str) -> int:
        """Return the offset of the function with this name.

        Raises
        ------
        Malformed
            There is no such symbol.
        """
        for each in self.symbols:
            if each.name == symbol and each.section in self.offsets:
                return self.offsets[each.section] + each.value
        raise Malformed(f"there is no symbol {symbol!r}")

    def at(self, address: int, known: dict[str, int]) -> bytearray:
        """Return the memory content for an image at `address`, with relocations applied.

        Parameters
        ----------
        known : dict
            The address of each of `names`.

        Raises
        ------
        Unsupported
            A relocation's target is out of range.
        """
        memory = bytearray(self.size)
        for start, content in self.content:
            memory[start : start + len(content)] = content
        veneers = {}
        for number, name in enumerate(self.names):
            place = self.veneers + number * _VENEER_BYTES
            memory[place : place + _VENEER_BYTES] = _VENEERS[self.machine] + struct.pack("<Q", known[name])
            veneers[name] = address + place
        for each in self.relocations:
            symbol = self.symbols[each.symbol]
            how = _RELOCATIONS[self.machine][each.kind]
            if how.by_slot:
                target = veneers[symbol.name] + _SLOT
            elif symbol.section == UNDEFINED:
                target = (veneers if how.branches else known)[symbol.name]
            else:
                target = symbol.value + (0 if symbol.section == ABSOLUTE else address + self.offsets[symbol.section])
            place = self.offsets[each.section] + each.offset
            how.apply(memory, place, target + each.addend, address + place)
        return memory


def read(content: bytes) -> Image:
    """Read an object file.

    Raises
    ------
    Malformed
        The file is damaged.
    Unsupported
        The file is not 64-bit ELF, or has writable data or relocation types that no kernel has.
    """
    try:
        return _image(content)
    except (struct.error, UnicodeDecodeError, IndexError, KeyError, OverflowError) as error:
        raise Malformed(str(error)) from error


def place_of_code(content: bytes) -> tuple[int, int]:
    """Return the offset and the size of the instructions in the object file of one function, in bytes."""
    *_, table, _, count, names = _HEADER.unpack_from(content)
    found = next(each for each in _sections(content, table, count, names) if each.flags & _EXECUTED and each.size)
    return found.start, found.size


def _image(content: bytes) -> Image:
    if content[: len(MAGIC)] != MAGIC:
        raise Unsupported("it is no ELF file of 64 bits")
    kind, machine, table, size, count, names = _HEADER.unpack_from(content)
    if machine not in _RELOCATIONS:
        raise Unsupported(f"architecture {machine}")
    if kind != RELOCATABLE or size != _SECTION.size:
        raise Malformed(f"type {kind}, sections of {size} bytes")
    sections = _sections(content, table, count, names)
    offsets, laid, end = {}, [], 0
    for number, each in enumerate(sections):
        if not each.flags & _LOADED or each.name.startswith(_UNWINDING):
            continue
        if each.flags & (_WRITE | _LOCAL_TO_THREAD) and each.size:
            raise Unsupported(f"data that is written to: {each.name}")
        end = -(-end // each.alignment) * each.alignment
        offsets[number] = end
        laid.append((end, bytes(each.size) if each.kind == _ZEROS else _part(content, each)))
        end += each.size
    symbols = tuple(_symbols(content, sections))
    relocations = tuple(_relocations(content, sections, offsets, symbols, machine))
    used = sorted({symbols[each.symbol].name for each in relocations if symbols[each.symbol].section == UNDEFINED})
    veneers = -(-end // ALIGNMENT) * ALIGNMENT
    total = veneers + len(used) * _VENEER_BYTES
    if total > _MAX_BYTES:
        raise Unsupported(f"{total} bytes")
    return Image(machine, total, tuple(used), tuple(laid), offsets, symbols, relocations, veneers)


def _sections(content: bytes, table: int, count: int, names: int) -> list[_Section]:
    found = [_SECTION.unpack_from(content, table + number * _SECTION.size) for number in range(count)]
    if not found or names >= count:
        raise Malformed("there are no names of sections")
    start, size = found[names][3:5]
    texts = content[start : start + size]
    sections = []
    for name, kind, flags, start, size, link, info, alignment in found:
        if kind != _ZEROS and start + size > len(content):
            raise Malformed("a section ends after the file")
        if size > _MAX_BYTES or alignment > 1 << _PAGE or alignment & (alignment - 1):
            raise Malformed(f"a section of {size} bytes, aligned to {alignment}")
        sections.append(_Section(_text(texts, name), kind, flags, start, size, link, info, max(alignment, ALIGNMENT)))
    return sections


def _part(content: bytes, section: _Section) -> bytes:
    return content[section.start : section.start + section.size]


def _text(texts: bytes, start: int) -> str:
    end = texts.find(0, start)
    if end < 0:
        raise Malformed("a name that is not there")
    return texts[start:end].decode()


def _symbols(content: bytes, sections: list[_Section]) -> Iterator[_Symbol]:
    for each in sections:
        if each.kind != _SYMBOLS:
            continue
        texts = _part(content, sections[each.link])
        for name, _, section, value in _SYMBOL.iter_unpack(_part(content, each)):
            if section < _RESERVED and section and value > sections[section].size:
                raise Malformed("a symbol outside of its section")
            yield _Symbol(_text(texts, name) if name else "", section, value)


def _relocations(
    content: bytes, sections: list[_Section], offsets: dict[int, int], symbols: tuple[_Symbol, ...], machine: int
) -> Iterator[Relocation]:
    for each in sections:
        if each.info not in offsets or each.kind not in (_ADDENDS, _WITHOUT_ADDENDS):
            continue
        if each.kind == _WITHOUT_ADDENDS:
            raise Unsupported("relocations without addends")
        for offset, info, addend in _ADDEND.iter_unpack(_part(content, each)):
            kind, symbol = info & 0xFFFFFFFF, info >> 32
            if kind not in _RELOCATIONS[machine]:
                raise Unsupported(f"relocation {kind}")
            if offset + _RELOCATIONS[machine][kind].bytes > sections[each.info].size:
                raise Malformed("a relocation outside of its section")
            target = symbols[symbol].section
            if target not in (UNDEFINED, ABSOLUTE) and target not in offsets:
                raise Unsupported(f"a relocation against section {target}")
            if target == UNDEFINED and not symbols[symbol].name:
                raise Malformed("a relocation against nothing")
            if _RELOCATIONS[machine][kind].by_slot and (target != UNDEFINED or addend):
                raise Unsupported("a slot for a symbol of the file's own, or for a place beside a symbol")
            yield Relocation(each.info, offset, kind, symbol, addend)


# --- relocation types -----------------------------------------------------------------------------------------------
# Each sets a field at an index of `memory` from the addresses of the target and of the relocated place.


class _Kind(NamedTuple):
    bytes: int
    apply: Callable[[bytearray, int, int, int], None]
    branches: bool = False  # whether it may go through a veneer
    by_slot: bool = False  # whether it refers to a slot with the target's address, which a veneer has


def _stored(form: str, relative: bool) -> Callable[[bytearray, int, int, int], None]:
    """Store the target's address, or its distance from the place, as an integer of `form`."""

    def apply(memory: bytearray, index: int, target: int, place: int) -> None:
        value = target - place if relative else target
        try:
            struct.pack_into(form, memory, index, value if form.islower() else value & 0xFFFFFFFFFFFFFFFF)
        except struct.error:
            raise Unsupported(f"a distance of {value:#x}") from None

    return apply


def _into_instruction(
    value: Callable[[int, int], int], low: int, bits: int, shift: int = 0, signed: bool = False
) -> Callable[[bytearray, int, int, int], None]:
    """Set a field of `bits` bits, from bit `low` on, of an Arm instruction."""

    def apply(memory: bytearray, index: int, target: int, place: int) -> None:
        number = value(target, place) >> shift
        if signed and not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise Unsupported(f"a distance of {target - place:#x}")
        (word,) = struct.unpack_from("<I", memory, index)
        mask = (1 << bits) - 1
        struct.pack_into("<I", memory, index, word & ~(mask << low) | (number & mask) << low)

    return apply


def _to_page(memory: bytearray, index: int, target: int, place: int) -> None:
    pages = (target >> _PAGE) - (place >> _PAGE)
    if not -(1 << 20) <= pages < 1 << 20:
        raise Unsupported(f"a distance of {target - place:#x}")
    (word,) = struct.unpack_from("<I", memory, index)
    field = (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    struct.pack_into("<I", memory, index, word & ~(3 << 29 | 0x7FFFF << 5) | field)


def _sixteen_bits(part: int) -> _Kind:
    return _Kind(4, _into_instruction(lambda target, place: target, 5, 16, 16 * part))


def _in_page(shift: int) -> _Kind:
    return _Kind(4, _into_instruction(lambda target, place: target & (1 << _PAGE) - 1, 10, 12, shift))


_BRANCH = _Kind(4, _into_instruction(lambda target, place: target - place, 0, 26, 2, signed=True), branches=True)
_RELOCATIONS: dict[int, dict[int, _Kind]] = {
    X86: {
        1: _Kind(8, _stored("<Q", False)),  # 64
        2: _Kind(4, _stored("<i", True)),  # PC32
        4: _Kind(4, _stored("<i", True), branches=True),  # PLT32
        11: _Kind(4, _stored("<i", False)),  # 32S
        24: _Kind(8, _stored("<q", True)),  # PC64
    },
    ARM: {
        257: _Kind(8, _stored("<Q", False)),  # ABS64
        260: _Kind(8, _stored("<q", True)),  # PREL64
        261: _Kind(4, _stored("<i", True)),  # PREL32
        263: _sixteen_bits(0),  # MOVW_UABS_G0; 264: its NC form without overflow check; likewise G1 to G3
        264: _sixteen_bits(0),
        265: _sixteen_bits(1),
        266: _sixteen_bits(1),
        267: _sixteen_bits(2),
        268: _sixteen_bits(2),
        269: _sixteen_bits(3),
        275: _Kind(4, _to_page),  # ADR_PREL_PG_HI21
        277: _in_page(0),  # ADD_ABS_LO12_NC, then loads and stores of 1 to 16 bytes
        278: _in_page(0),
        284: _in_page(1),
        285: _in_page(2),
        286: _in_page(3),
        299: _in_page(4),
        282: _BRANCH,  # JUMP26
        283: _BRANCH,  # CALL26
        311: _Kind(4, _to_page, by_slot=True),  # ADR_GOT_PAGE, and LD64_GOT_LO12_NC
        312: _Kind(4, _in_page(3).apply, by_slot=True),
    },
}
_VENEERS = {  # instructions that jump to the address stored behind them
    X86: bytes.fromhex("ff2502000000 0f0b"),  # jmp [rip + 2]; ud2
    ARM: bytes.fromhex("50000058 00021fd6"),  # ldr x16, .+8; br x16
}
_VENEER_BYTES = 16
_SLOT = 8  # offset of the address in a veneer
