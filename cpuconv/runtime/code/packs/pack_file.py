"""Kernel pack files: compiled kernels, compressed in blocks with checksums, so that kernels are read one by one.

A file has parts, for instance one per class of CPUs. The indexes of a part map kernel names to places in blocks. Parts
share kernels, as many kernels have equal machine code in several classes, and they share the indexes of such kernels.
The file begins with a magic number, the format version, the header's size in bytes, and the SHA-256 of these and the
header. Then come the header (compressed JSON), the indexes and the blocks. `packing` writes such files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baselib.files import open_regular
from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.packs.stripped import SYMBOL, strip_to_code, wrap_code

MAGIC, FORMAT = b"\x89cpupack", 3
PREFIX = struct.Struct("<8sII")
_DIGEST = hashlib.sha256().digest_size
_START = PREFIX.size + _DIGEST
_MAX_BYTES = 1 << 26  # max. size of a header or a block
_OPEN_BLOCKS = 16  # max. decompressed blocks in memory
FILTERS: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 20}]
DIGEST_LETTERS = 20  # characters of a kernel's hash, the end of its name (`kernel_files.name_of`)


class Damaged(ValueError):
    """The file is not a pack, has another version, or is damaged."""


_WHOLE, _CODE_ONLY = b"\0", b"\1"  # first byte of a kernel in its block
_CODE_HEAD = struct.Struct("<H8s")  # architecture, hash of the IR


def as_stored(content: bytes) -> bytes:
    """Return a kernel as stored in a block: without undefined symbols only architecture, IR hash and code."""
    kernel = KernelBody.of(content)
    found = strip_to_code(kernel.code) if kernel.symbol == SYMBOL and len(kernel.ir_hash) in (0, 16) else None
    if found is None:
        return _WHOLE + content
    return _CODE_ONLY + _CODE_HEAD.pack(found[0], bytes.fromhex(kernel.ir_hash)) + found[1]


def _restored(stored: bytes) -> bytes:
    if stored[:1] == _WHOLE:
        return stored[1:]
    machine, ir_hash = _CODE_HEAD.unpack_from(stored, 1)
    code = wrap_code(machine, stored[1 + _CODE_HEAD.size :])
    return KernelBody(SYMBOL, ir_hash.hex() if any(ir_hash) else "", code).to_bytes()


def checksum(content: bytes) -> str:
    """Return the checksum of an index or block, as in the header."""
    return hashlib.sha256(content).hexdigest()[:32]


_TROUBLE = (OSError, RecursionError, struct.error, lzma.LZMAError, LookupError, TypeError, ValueError)


class Pack:
    """A pack as written by `packing.packed`; verified while it is read.

    Attributes
    ----------
    parts : tuple of str
        Names of the parts.

    Parameters
    ----------
    read : callable
        `read(start, size)` returns `size` bytes of the file, or fewer at its end; it may raise OSError.

    Raises
    ------
    Damaged
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        try:
            prefix = read(0, _START)
            magic, version, size = PREFIX.unpack_from(prefix)
            if (magic, version) != (MAGIC, FORMAT) or size > _MAX_BYTES:
                raise Damaged("it is no pack of this version")
            header = read(_START, size)
            if hashlib.sha256(prefix[: PREFIX.size] + header).digest() != prefix[PREFIX.size :]:
                raise Damaged("its header does not have the checksum that it states")
            stated = json.loads(_decompressed(header))
            self._indexes: dict[str, list[int]] = dict(stated["parts"])
            self._blocks, self._table = int(stated["blocks"]), list(stated["pieces"])
        except _TROUBLE as error:
            raise Damaged(str(error)) from error
        self.parts = tuple(self._indexes)
        self._begin = _START + size
        self._block = functools.lru_cache(maxsize=_OPEN_BLOCKS)(self._piece)

    def part(self, name: str) -> Part:
        """Return a part.

        Raises
        ------
        Damaged
            The part is damaged, or no part has this name.
        """
        try:
            index: dict[str, list[int]] = {}
            for number in self._indexes[name]:
                index.update(json.loads(self._piece(number)))
            return Part(index, lambda number: self._block(self._blocks + number))
        except _TROUBLE as error:
            raise Damaged(str(error)) from error

    def _piece(self, number: int) -> bytes:
        start, size, full, stated = self._table[number]
        if full > _MAX_BYTES:
            raise Damaged(f"{full} bytes in a block")
        content = _decompressed(self._read(self._begin + start, size), full)
        if checksum(content) != stated:
            raise Damaged("a block does not have the checksum that it states")
        return content


class Part:
    """The kernels of one part of a pack.

    Parameters
    ----------
    index : dict
        The block, offset and size in bytes of each kernel, by the hash in its name.
    block : callable
        Returns the content of a block by its number.
    """

    def __init__(self, index: dict[str, list[int]], block: Callable[[int], bytes]) -> None:
        self._index, self._block = index, block

    def __len__(self) -> int:
        """Return the number of kernels."""
        return len(self._index)

    def __contains__(self, name: str) -> bool:
        return name[-DIGEST_LETTERS:] in self._index

    def get(self, name: str) -> bytes | None:
        """Return the kernel with this name; None if the part lacks it.

        Raises
        ------
        Damaged
        """
        found = self._index.get(name[-DIGEST_LETTERS:])
        if found is None:
            return None
        try:
            number, start, size = found
            content = self._block(number)[start : start + size]
        except _TROUBLE as error:
            raise Damaged(str(error)) from error
        if not content or len(content) != size:
            raise Damaged("a kernel passes the end of its block")
        return _restored(content)


def _decompressed(content: bytes, most: int = _MAX_BYTES) -> bytes:
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=FILTERS).decompress(content, most)


def of_file(path: Path) -> Pack:
    """Return the pack in a file, which is opened whenever a block is read.

    Raises
    ------
    Damaged
    """

    def read(start: int, size: int) -> bytes:
        with open_regular(path) as file:
            file.seek(start)
            return file.read(size)

    return Pack(read)


def of_bytes(content: bytes) -> Pack:
    """Return the pack in a byte string.

    Raises
    ------
    Damaged
    """
    return Pack(lambda start, size: bytes(content[start : start + size]))
