"""File format with a header and blocks of bytes; files are memory-mapped, so that processes share them.

A file begins with 64 bytes: a magic, the version of the format, the sizes of the header and of the file, and a BLAKE2b
digest of these and of the header. The header, in JSON, follows, and then the blocks, each aligned to 64 bytes. The
header lists their offsets from the first block, their sizes and their checksums. Checksums are fingerprints
(`conv.caches.fingerprint`) with a fixed key. A block is checked before its first use.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import reprlib
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from baselib.files import open_regular, write_whole
from cpuconv.conv.caches.fingerprint import Fingerprinter
from cpuconv.errors import MissingFileError, SourceError
from cpuconv.memory.mapped_files import contents
from cpuconv.network.saved.header_limits import MAX_HEADER_BYTES, check_text
from cpuconv.runtime.code.cache import recording_names

MAGIC = b"\x89cpuconv"
FORMAT = 2  # 1: without batch sizes
ALIGNMENT = 64
PREFIX = struct.Struct("<8sQQQ")  # magic, format, bytes of the header, bytes of the file
_DIGEST = 32
START = PREFIX.size + _DIGEST
_LANES = 8  # lanes of checksums, for all instruction sets


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins with the magic of a saved model."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def checksum(array: np.ndarray) -> str:
    """Checksum of an array's elements in C order."""
    return _fingerprinter()(_flat(array)).hex()


@functools.cache
def _fingerprinter() -> Fingerprinter:
    """The fingerprinter for checksums; created at first use, which compiles or loads its kernel."""
    return Fingerprinter(hashlib.shake_256(MAGIC).digest, _LANES)


def checksum_kernels() -> set[str]:
    """The names of the kernels that compute checksums."""
    with recording_names() as names:
        Fingerprinter(hashlib.shake_256(MAGIC).digest, _LANES)(np.zeros(ALIGNMENT, np.uint8))
    return names


class Blocks:
    """Blocks of a new file; equal blocks are stored once."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._table: list[tuple[int, int, str]] = []  # offset, size in bytes, checksum
        self._known: dict[str, int] = {}
        self._end = 0

    def add(self, array: np.ndarray) -> int:
        """Add an array's elements in C order; return the number of the block, or -1 for an empty array."""
        if not array.size:
            return -1
        content = _flat(array)
        key = checksum(content)
        number = self._known.setdefault(key, len(self._arrays))
        if number == len(self._arrays):
            self._arrays.append(content)
            self._table.append((self._end, content.nbytes, key))
            self._end += rounded(content.nbytes)
        return number

    def write(self, path: Path, header: Mapping[str, Any]) -> None:
        """Atomically write the file with a header, to which the table "blocks" is added.

        Raises
        ------
        OSError
            The file cannot be written.
        SourceError
            The header is larger than `MAX_HEADER_BYTES`.
        """
        text = json.dumps({**header, "blocks": self._table}, separators=(",", ":")).encode()
        if len(text) > MAX_HEADER_BYTES:
            raise SourceError(
                f"{path.name} cannot be saved: its header takes {len(text)} bytes, more than {MAX_HEADER_BYTES}."
            )
        version = FORMAT if "batches" in header else 1
        prefix = PREFIX.pack(MAGIC, version, len(text), rounded(START + len(text)) + self._end)
        write_whole({path: self._parts(prefix + digest(prefix, text) + text)})

    def _parts(self, beginning: bytes) -> Iterator[bytes | np.ndarray]:
        yield beginning
        yield _padding(len(beginning))
        for array in self._arrays:
            yield array
            yield _padding(array.nbytes)


class Container:
    """A memory-mapped file that `Blocks.write` wrote.

    Attributes
    ----------
    header : dict
        The writer's header; the reader must validate it.

    Parameters
    ----------
    path : path

    Raises
    ------
    SourceError
        The file cannot be read, is not of this format, is of a newer version, or is damaged.

    Notes
    -----
    The mapping remains valid if another file takes its name. If the file is written in place or truncated, the mapped
    contents change or become inaccessible.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.path.basename(os.fspath(path))
        try:
            self._map = np.frombuffer(contents(Path(os.fsdecode(path))), np.uint8)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EISDIR):
                raise SourceError(f"{self.name} must be a file.") from error
            if error.errno == errno.ENOENT:
                raise MissingFileError(f"{self.name} cannot be read: {error}", os.fsdecode(path)) from error
            raise SourceError(f"{self.name} cannot be read: {error}") from error
        if not self._map.size or self._map[: len(MAGIC)].tobytes() != MAGIC[: self._map.size]:
            raise SourceError(f"{self.name} is no saved model{_instead(self._map)}.")
        if self._map.size < START:
            raise self._damaged("it ends early")
        self.header = self._read()
        self._begin = rounded(START + self._header_bytes)
        self._blocks = self._table(self.header.pop("blocks", None))
        self._checked = [False] * len(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def _damaged(self, why: str) -> SourceError:
        return SourceError(f"{self.name} is damaged: {why}.")

    def _read(self) -> dict[str, Any]:
        """Read and check the header."""
        prefix = self._map[: PREFIX.size].tobytes()
        _, version, self._header_bytes, size = PREFIX.unpack(prefix)
        if version > FORMAT:
            raise SourceError(
                f"{self.name} was saved by a newer cpuconv: its format is {version}, this one reads up to {FORMAT}."
            )
        if size != self._map.size or START + self._header_bytes > size:
            raise self._damaged(f"it has {self._map.size} bytes, and says {size}")
        if self._header_bytes > MAX_HEADER_BYTES:
            raise self._damaged(f"its header takes {self._header_bytes} bytes, more than {MAX_HEADER_BYTES}")
        text = self._map[START : START + self._header_bytes].tobytes()
        if digest(prefix, text) != self._map[PREFIX.size : START].tobytes():
            raise self._damaged("its header does not have the checksum that it states")
        check_text(text, self.name)
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"its header is no JSON, {error}") from error
        if not isinstance(header, dict):
            raise self._damaged("its header is no object")
        return header

    def _table(self, table: Any) -> list[tuple[int, int, str]]:
        """Check the table of blocks; each block must be within the file."""
        if not isinstance(table, list):
            raise self._damaged("it has no table of blocks")
        blocks = []
        for row in table:
            fits = isinstance(row, list) and [type(item) for item in row] == [int, int, str]
            if not fits or row[0] % ALIGNMENT or row[0] < 0 or row[1] <= 0:
                raise self._damaged(f"a block at {reprlib.repr(row)}")
            if self._begin + row[0] + row[1] > self._map.size:
                raise self._damaged(f"a block at {row} passes its end")
            blocks.append((row[0], row[1], row[2]))
        return blocks

    def size(self, number: int) -> int:
        """Size of a block, in bytes."""
        return self._blocks[number][1]

    def checksum(self, number: int) -> str:
        """Expected checksum of a block."""
        return self._blocks[number][2]

    def view(self, number: int) -> np.ndarray:
        """The mapped bytes of a block, read-only and unchecked."""
        start, size, _ = self._blocks[number]
        return self._map[self._begin + start : self._begin + start + size]

    def check(self, number: int) -> None:
        """Check the checksum of a block, once.

        Raises
        ------
        SourceError
            The checksum is wrong.
        """
        if not self._checked[number]:
            if checksum(self.view(number)) != self.checksum(number):
                raise self._damaged("weights in it do not have the checksum that it states")
            self._checked[number] = True


def digest(prefix: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_DIGEST, key=prefix).digest()


def rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _instead(content: np.ndarray) -> str:
    """Describe a file that is not a saved model, with a hint what to do, if it is recognised."""
    from cpuconv.protos.recognising import check_recognised
    from cpuconv.reading.decoding import is_model  # deferred: `load` does not need it

    try:
        check_recognised(content.data, "it")
    except SourceError as error:
        return f"; it {str(error).partition(', and ')[2].rstrip('.')}"
    return ", and is an ONNX model, which cpuconv.compile reads" if is_model(content.data) else ""


def _padding(size: int) -> bytes:
    return bytes(rounded(size) - size)


def _flat(array: np.ndarray) -> np.ndarray:
    """The bytes of an array's elements in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
