"""Decoding of protocol buffers to records, and encoding of records.

Long data are not copied: they are views of the input. The memory of a message is bounded, as descriptions of a few
bytes become objects of some hundred bytes.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from autotune.machine.memory import free_bytes
from cpuconv.errors import SourceError
from cpuconv.protos.messages import Field, Record

MAX_LEVELS = 100  # max. nesting of messages, as in protobuf libraries
_OBJECT = 300  # upper bound of the bytes of a message, or of a number in a list
_LOOK = 1 << 18  # fields between two checks of free memory
_MANY = 32  # min. elements stored as an array

_VARINT, _EIGHT, _BYTES, _GROUP, _END, _FOUR = range(6)  # wire types
_KINDS = {"string": _BYTES, "bytes": _BYTES, "message": _BYTES, "float": _FOUR, "double": _EIGHT}  # all others: varint
_FIXED: dict[str, tuple[str, np.dtype]] = {"float": ("<f", np.dtype("<f4")), "double": ("<d", np.dtype("<f8"))}


class DamagedError(ValueError):
    """The bytes are not a valid message."""


def decode(data: Any, message: type[Record]) -> Any:
    """Decode a message.

    Parameters
    ----------
    data : bytes, bytearray or memoryview
    message : type[Record]
        A message type of `cpuconv.protos.messages`.

    Raises
    ------
    DamagedError
        The bytes are not a valid message, or messages nest deeper than `MAX_LEVELS`.
    SourceError
        The message does not fit into free memory.
    """
    view = memoryview(data)
    return _Decoder(view).message(message(), 0, len(view), 0)


class _Decoder:
    """Decoder of a message and its submessages."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._left = _LOOK
        self._seen = 0

    def message(self, record: Record, at: int, end: int, level: int) -> Record:
        """Add the fields between two offsets to `record`; return it."""
        if level > MAX_LEVELS:
            raise DamagedError(f"messages nest deeper than {MAX_LEVELS} levels")
        data, fields, values = self._data, record.FIELDS, vars(record)
        while at < end:
            key = data[at]
            at += 1
            if key > 127:
                key, at = self._varint(at - 1, end)
            kind, field = key & 7, fields.get(key >> 3)
            if not 0 < key >> 3 < 1 << 29:
                raise DamagedError("a field has no number")
            self._count(1)
            if kind == _BYTES:
                size, at = self._varint(at, end)
                start, at = at, at + size
                if at > end:
                    raise DamagedError("a field is truncated")
                if field is not None:
                    self._bytes(values, field, start, at, level)
            elif kind == _VARINT:
                value, at = self._varint(at, end)
                if field is not None and field.kind not in _KINDS:
                    self._keep(values, field, _number(value, field.kind))
            elif kind in (_FOUR, _EIGHT):
                start, at = at, at + (4 if kind == _FOUR else 8)
                if at > end:
                    raise DamagedError("a field is truncated")
                if field is not None and _KINDS.get(field.kind) == kind:
                    self._keep(values, field, struct.unpack_from(_FIXED[field.kind][0], data, start)[0])
            elif kind == _GROUP:
                at = self._behind_group(key >> 3, at, end, level + 1)
            else:
                raise DamagedError("a field has an unknown wire type")
        return record

    def _bytes(self, values: dict[str, Any], field: Field, start: int, end: int, level: int) -> None:
        """Store a length-delimited field: text, a message, or packed numbers."""
        if field.kind == "message":
            assert field.message is not None
            known = None if field.repeated else values.get(field.name)  # parts of a split message are merged
            self._keep(values, field, self.message(known or field.message(), start, end, level + 1))
        elif field.kind == "string":
            text = bytes(self._data[start:end])
            try:
                self._keep(values, field, text.decode())
            except UnicodeDecodeError:
                self._keep(values, field, text)
        elif field.name == "raw_data":
            values[field.name] = self._data[start:end]
        elif field.kind == "bytes":
            self._keep(values, field, bytes(self._data[start:end]))
        elif field.repeated:
            self._numbers(values, field, start, end)

    def _numbers(self, values: dict[str, Any], field: Field, start: int, end: int) -> None:
        """Store packed numbers: many tensor elements as an array."""
        if end - start < _MANY:  # arrays would take longer
            self._few(values, field, start, end)
            return
        if field.kind in _FIXED:
            dtype = _FIXED[field.kind][1]
            if (end - start) % dtype.itemsize:
                raise DamagedError("a list of numbers is truncated")
            found = np.frombuffer(self._data[start:end], dtype)
        else:
            found = _varints(self._data[start:end], field.kind)
        if field.name not in values and found.size >= _MANY and field.name.endswith("_data"):
            values[field.name] = found
            return
        self._count(found.size)
        self._list(values, field).extend(found.tolist())

    def _few(self, values: dict[str, Any], field: Field, at: int, end: int) -> None:
        """Store a few packed numbers."""
        numbers = self._list(values, field)
        self._count(end - at)
        if field.kind in _FIXED:
            code, dtype = _FIXED[field.kind]
            if (end - at) % dtype.itemsize:
                raise DamagedError("a list of numbers is truncated")
            numbers.extend(number for (number,) in struct.iter_unpack(code, self._data[at:end]))
            return
        while at < end:
            value, at = self._varint(at, end)
            number = _number(value, field.kind)
            assert number is not None  # enumerations are not repeated
            numbers.append(number)

    def _list(self, values: dict[str, Any], field: Field) -> list[Any]:
        """Return the list of a repeated field for appending, so that many pieces are not copied repeatedly."""
        known = values.get(field.name)
        if not isinstance(known, list):
            known = values[field.name] = [] if known is None else known.tolist()
            self._count(len(known))
        return known

    def _keep(self, values: dict[str, Any], field: Field, value: Any) -> None:
        if value is None:  # an unknown value of an enumeration
            return
        if field.repeated:
            self._list(values, field).append(value)
            return
        values[field.name] = value
        for other in field.beside:
            values.pop(other, None)

    def _behind_group(self, number: int, at: int, end: int, level: int) -> int:
        """Return the offset behind a group; messages of ONNX have none."""
        if level > MAX_LEVELS:
            raise DamagedError(f"messages nest deeper than {MAX_LEVELS} levels")
        while at < end:
            key, at = self._varint(at, end)
            kind = key & 7
            if kind == _END:
                if key >> 3 != number:
                    break
                return at
            if kind == _GROUP:
                at = self._behind_group(key >> 3, at, end, level + 1)
            elif kind == _VARINT:
                _, at = self._varint(at, end)
            elif kind == _BYTES:
                size, at = self._varint(at, end)
                at += size
            elif kind in (_FOUR, _EIGHT):
                at += 4 if kind == _FOUR else 8
            else:
                break
        raise DamagedError("a group is not terminated")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Decode a varint (7 bits per byte, lowest first); return it and the offset behind it."""
        number = 0
        for shift in range(0, 70, 7):
            if at >= end:
                break
            byte = self._data[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number & (1 << 64) - 1, at
        raise DamagedError("a number is not terminated")

    def _count(self, objects: int) -> None:
        """Count created objects, and check now and then that they fit into memory."""
        self._left -= objects
        if self._left >= 0:
            return
        self._seen += _LOOK - self._left
        self._left = _LOOK
        if self._seen * _OBJECT > free_bytes():  # the graph needs as much memory again
            raise SourceError(
                f"the model's description has more than {self._seen:,} fields, too many for the free memory."
            )


def _number(value: int, kind: str) -> int | None:
    """Convert a varint to its field's type; None for an unknown value of an enumeration."""
    if kind == "uint64":
        return value
    if kind == "int64":
        return value - (1 << 64) if value >> 63 else value
    value &= (1 << 32) - 1
    value = value - (1 << 32) if value >> 31 else value
    return value if kind == "int32" or 0 <= value <= int(kind[4:]) else None


def _varints(data: memoryview, kind: str) -> np.ndarray:
    """Decode adjacent varints to an array of their field's type: int32, int64 or uint64."""
    bytes_ = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(bytes_ < 128)
    if bytes_.size and (not ends.size or ends[-1] != bytes_.size - 1):
        raise DamagedError("a number is not terminated")
    starts = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    if (sizes := ends - starts).size and sizes.max() > 9:
        raise DamagedError("a number is not terminated")
    if not ends.size:
        return np.empty(0, kind)
    shifts = 7 * (np.arange(bytes_.size) - np.repeat(starts, sizes + 1))
    parts = (bytes_ & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts).astype(kind)


# --- encoding -------------------------------------------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """Encode a message."""
    made = bytearray()
    values = vars(record)
    for number, field in record.FIELDS.items():
        value = values.get(field.name)
        if value is None:
            continue
        for each in value if field.repeated else (value,):
            kind = _KINDS.get(field.kind, _VARINT)
            _put_varint(made, number << 3 | kind)
            if kind == _VARINT:
                _put_varint(made, int(each) & (1 << 64) - 1)
            elif kind != _BYTES:
                made += struct.pack(_FIXED[field.kind][0], each)
            else:
                body = encode(each) if field.kind == "message" else each.encode() if isinstance(each, str) else each
                _put_varint(made, len(body))
                made += body
    return bytes(made)


def _put_varint(made: bytearray, value: int) -> None:
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
