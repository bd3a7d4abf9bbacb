"""Constants where they lie: in a model's file that is mapped into memory, or in bytes that a caller holds.

An ONNX file is one message of protocol buffers with the weights inside; decoded whole, they are copied several times.
So `skeleton` leaves long ones out and says where they lie, as ONNX says it of data in other files. Arrays made of them
are lent: what outlives the making of a program copies them (`own`), and their pages go back when they have been read
(`let_go`), to be read from the file again when other sizes need them. Lent arrays need not be aligned.

Source: https://protobuf.dev/programming-guides/encoding, and the numbers of fields in onnx.proto.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cpuconv.errors import SourceError

Data = bytes | mmap.mmap
INSIDE = "\0"  # the location of data in the model itself; no path has a NUL
LONG = 1 << 12  # bytes of elements that are worth it


class Mapped(mmap.mmap):
    """A file in memory, page by page as it is read. The file stays open, so that it may be renamed or removed."""

    _file: BinaryIO
    _seen: tuple[int, int]

    @classmethod
    def of(cls, file: BinaryIO) -> Mapped:
        """Map a whole file.

        Raises
        ------
        OSError, ValueError
            It is empty, or cannot be mapped.
        """
        made = cls(file.fileno(), 0, access=mmap.ACCESS_READ)
        made._file = file
        made._seen = made._state()
        return made

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    @property
    def name(self) -> str:
        """The path of the file when it was opened."""
        return str(self._file.name)

    @property
    def changed(self) -> bool:
        """Whether the file was written to since it was mapped."""
        return self._state() != self._seen

    def _state(self) -> tuple[int, int]:
        now = os.fstat(self._file.fileno())
        return now.st_size, now.st_mtime_ns


def contents(path: Path) -> Data:
    """A file's content: mapped, or read where that is impossible.

    Raises
    ------
    OSError
        It cannot be read, or does not fit into memory.
    """
    file = path.open("rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        try:
            return Mapped.of(file)
        except (OSError, ValueError):
            pass
    with file:
        try:
            return file.read()
        except MemoryError as error:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error


# --- lent arrays ----------------------------------------------------------------------------------------------------


def lender(array: np.ndarray) -> Data | None:
    """The file or the bytes of a model that an array is a view of; None: others have its memory."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, (Mapped, bytes)) else None


def own(array: np.ndarray) -> np.ndarray:
    """The array, or a copy of a lent one."""
    return array if lender(array) is None else np.array(array, order="C")


def let_go(arrays: Iterable[np.ndarray]) -> None:
    """Give back the memory that files of lent arrays take; they can still be read."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for each in _files(arrays):
            each.madvise(mmap.MADV_DONTNEED)


def check_unchanged(arrays: Iterable[np.ndarray]) -> None:
    """See that the files of lent arrays are as they were.

    Raises
    ------
    SourceError
        One was written to.
    """
    for each in _files(arrays):
        if each.changed:
            raise SourceError(f"The file {each.name!r} was changed since the model was read: compile it again.")


def _files(arrays: Iterable[np.ndarray]) -> set[Mapped]:
    return {found for array in arrays if isinstance(found := lender(array), Mapped)}


# --- messages without long constants --------------------------------------------------------------------------------


class _Field(NamedTuple):
    number: int
    kind: int
    start: int  # of the whole field
    value: int  # of what it holds
    end: int


_BYTES = 2  # kind of a field that holds bytes or a message
_INNER = {  # by message: the fields that may hold long constants
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},  # of Constant nodes alone: others keep their messages
    "attribute": {5: "tensor"},
}
_OP_TYPE, _RAW, _EXTERNAL, _LOCATION = 4, 9, 13, 14


def skeleton(data: Data) -> bytes:
    """A model's message in which long constants are stated to lie `INSIDE`, at their place in `data`."""
    try:
        return _without(memoryview(data), 0, len(data), "model")
    except ValueError:  # damaged: who decodes it says how
        return bytes(data)


def _without(data: memoryview, start: int, end: int, message: str) -> bytes:
    """A message between two places, without the long constants inside."""
    fields = _fields(data, start, end)
    if message == "tensor":
        return _tensor(data, start, end, list(fields))
    if message == "node":
        fields = iter(known := list(fields))
        if not any(field.number == _OP_TYPE and data[field.value : field.end] == b"Constant" for field in known):
            return bytes(data[start:end])
    pieces: list[bytes | memoryview] = []
    for number, kind, begin, value, stop in fields:
        inner = _INNER[message].get(number)
        if kind != _BYTES or inner is None or stop - value < LONG:
            continue
        pieces += [data[start:begin], _message(number, _without(data, value, stop, inner))]
        start = stop
    return b"".join([*pieces, data[start:end]])


def _tensor(data: memoryview, start: int, end: int, fields: list[_Field]) -> bytes:
    raw = [field for field in fields if field.number == _RAW and field.kind == _BYTES]
    if len(raw) != 1 or raw[0].end - raw[0].value < LONG or any(f.number in (_EXTERNAL, _LOCATION) for f in fields):
        return bytes(data[start:end])
    stated = {"location": INSIDE, "offset": str(raw[0].value), "length": str(raw[0].end - raw[0].value)}
    entries = [_message(_EXTERNAL, _message(1, k.encode()) + _message(2, v.encode())) for k, v in stated.items()]
    external = bytes([_LOCATION << 3, 1])  # data_location = EXTERNAL
    return b"".join([data[start : raw[0].start], data[raw[0].end : end], *entries, external])


def _fields(data: memoryview, at: int, end: int) -> Iterator[_Field]:
    """The fields of a message.

    Raises
    ------
    ValueError
        It has a field of no known kind, or one that does not end where the message does.
    """
    while at < end:
        start = at
        key, at = _varint(data, at, end)
        kind, value = key & 7, at
        if kind == _BYTES:
            size, value = _varint(data, at, end)
            at = value + size
        elif kind == 0:
            _, at = _varint(data, at, end)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("a field of no known kind")
        if at > end:
            raise ValueError("a field that is cut off")
        yield _Field(key >> 3, kind, start, value, at)


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("a number that does not end")


def _message(number: int, body: bytes) -> bytes:
    """A field that holds bytes."""
    return _number(number << 3 | _BYTES) + _number(len(body)) + body


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])
