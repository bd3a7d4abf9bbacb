"""Files of a header and blocks of bytes, which are mapped into memory, so that processes share them.

A file begins with 64 bytes: a magic, the version of the format, the sizes of the header and of the file, and a BLAKE2b
digest of these and of the header. Then comes the header, JSON, and from a multiple of 64 on the blocks, each at a
multiple of 64. The header lists them: where they begin, behind the header, their bytes and their checksums, which are
fingerprints (`memory.fingerprint`) with a key that is the same everywhere. A block is checked before it is first used.
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

from autotune.files import open_regular, write_whole
from cpuconv.conv.remembering.fingerprint import Fingerprinter
from cpuconv.errors import MissingFileError, SourceError
from cpuconv.memory.mapped_files import contents
from cpuconv.network.saved.bounds import MOST_HEADER, check_text
from cpuconv.runtime.code.cache import noting

MAGIC = b"\x89cpuconv"
FORMAT = 1
ALIGNMENT = 64
PREFIX = struct.Struct("<8sQQQ")  # magic, format, bytes of the header, bytes of the file
_DIGEST = 32
START = PREFIX.size + _DIGEST
_LANES = 8  # of checksums, whatever the instruction set's are


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a saved model does."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def checksum(array: np.ndarray) -> str:
    """Of an array's elements in C order."""
    return _fingerprinter()(_flat(array)).hex()


@functools.cache
def _fingerprinter() -> Fingerprinter:
    """Made at first use, which compiles or loads its kernel."""
    return Fingerprinter(hashlib.shake_256(MAGIC).digest, _LANES)


def checksum_kernels() -> set[str]:
    """The names of the kernels that checksums are computed by."""
    with noting() as names:
        Fingerprinter(hashlib.shake_256(MAGIC).digest, _LANES)(np.zeros(ALIGNMENT, np.uint8))
    return names


class Blocks:
    """Blocks for a new file; equal ones are written once."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._table: list[tuple[int, int, str]] = []  # where it begins, its bytes, its checksum
        self._known: dict[str, int] = {}
        self._end = 0

    def add(self, array: np.ndarray) -> int:
        """The number of the block that holds an array's elements in C order; an array of none has no block: -1."""
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
        """Write the file with a header, which gets their table as "blocks"; it appears whole or not at all.

        Raises
        ------
        OSError
            It cannot be written.
        SourceError
            The header is larger than `MOST_HEADER`.
        """
        text = json.dumps({**header, "blocks": self._table}, separators=(",", ":")).encode()
        if len(text) > MOST_HEADER:
            raise SourceError(
                f"{path.name} cannot be saved: its header takes {len(text)} bytes, more than {MOST_HEADER}."
            )
        prefix = PREFIX.pack(MAGIC, FORMAT, len(text), rounded(START + len(text)) + self._end)
        write_whole({path: self._parts(prefix + digest(prefix, text) + text)})

    def _parts(self, beginning: bytes) -> Iterator[bytes | np.ndarray]:
        yield beginning
        yield _padding(len(beginning))
        for array in self._arrays:
            yield array
            yield _padding(array.nbytes)


class Container:
    """A file that `Blocks.write` wrote, mapped into memory.

    Attributes
    ----------
    header : dict
        What the writer gave; whoever reads it has to check it.

    Parameters
    ----------
    path : path

    Raises
    ------
    SourceError
        It cannot be read, is no such file, one of a newer version, or damaged.

    Notes
    -----
    The mapping stays that of the file that was opened when another takes its name. A file that is written to in place,
    or cut, while it is mapped changes or ends what is read of it.
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
        """The header."""
        prefix = self._map[: PREFIX.size].tobytes()
        _, version, self._header_bytes, size = PREFIX.unpack(prefix)
        if version > FORMAT:
            raise SourceError(
                f"{self.name} was saved by a newer cpuconv: its format is {version}, this one reads up to {FORMAT}."
            )
        if size != self._map.size or START + self._header_bytes > size:
            raise self._damaged(f"it has {self._map.size} bytes, and says {size}")
        if self._header_bytes > MOST_HEADER:
            raise self._damaged(f"its header takes {self._header_bytes} bytes, more than {MOST_HEADER}")
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
        """The blocks, each of which lies within the file."""
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
        """Bytes of a block."""
        return self._blocks[number][1]

    def checksum(self, number: int) -> str:
        """What a block's checksum must be."""
        return self._blocks[number][2]

    def view(self, number: int) -> np.ndarray:
        """The bytes of a block, read-only, where they are mapped; not checked yet."""
        start, size, _ = self._blocks[number]
        return self._map[self._begin + start : self._begin + start + size]

    def check(self, number: int) -> None:
        """See that a block has its checksum, once.

        Raises
        ------
        SourceError
            It has not.
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
    """What a file is that is no saved model, and what to do with it, as far as that is known."""
    from cpuconv.protos.recognising import check_recognised
    from cpuconv.reading.decoding import is_model  # what `load` does not need

    try:
        check_recognised(content.data, "it")
    except SourceError as error:
        return f"; it {str(error).partition(', and ')[2].rstrip('.')}"
    return ", and is an ONNX model, which cpuconv.compile reads" if is_model(content.data) else ""


def _padding(size: int) -> bytes:
    return bytes(rounded(size) - size)


def _flat(array: np.ndarray) -> np.ndarray:
    """The bytes of the elements in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
