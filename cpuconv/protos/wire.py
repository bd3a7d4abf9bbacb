"""Bytes of protocol buffers as records, and records as bytes.

Long data are not copied: they are views of what is decoded. What a message takes in memory is bounded: descriptions of
a few bytes become objects of some hundred.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from autotune.machine.memory import free_bytes
from cpuconv.errors import SourceError
from cpuconv.protos.messages import Field, Record

MOST_LEVELS = 100  # of messages within messages, as the libraries of protocol buffers have it
_OBJECT = 300  # bytes of a message or a number in a list, at most
_LOOK = 1 << 18  # fields after which a look at the free memory is due
_MANY = 32  # elements that are kept as an array

_VARINT, _EIGHT, _BYTES, _GROUP, _END, _FOUR = range(6)  # kinds of fields on the wire
_KINDS = {"string": _BYTES, "bytes": _BYTES, "message": _BYTES, "float": _FOUR, "double": _EIGHT}  # all others: varint
_FIXED: dict[str, tuple[str, np.dtype]] = {"float": ("<f", np.dtype("<f4")), "double": ("<d", np.dtype("<f8"))}


class DamagedError(ValueError):
    """Bytes that are no message."""


def decode(data: Any, message: type[Record]) -> Any:
    """The message that bytes hold.

    Parameters
    ----------
    data : bytes, bytearray or memoryview
    message : type[Record]
        Of `cpuconv.protos.messages`.

    Raises
    ------
    DamagedError
        They hold none, or messages nest deeper than `MOST_LEVELS`.
    SourceError
        It does not fit into free memory.
    """
    view = memoryview(data)
    return _Decoder(view).message(message(), 0, len(view), 0)


class _Decoder:
    """The fields of one message and those within."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._left = _LOOK
        self._seen = 0

    def message(self, record: Record, at: int, end: int, level: int) -> Record:
        """`record` with the fields between two places."""
        if level > MOST_LEVELS:
            raise DamagedError(f"messages nest deeper than {MOST_LEVELS} levels")
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
                    raise DamagedError("a field is cut off")
                if field is not None:
                    self._bytes(values, field, start, at, level)
            elif kind == _VARINT:
                value, at = self._varint(at, end)
                if field is not None and field.kind not in _KINDS:
                    self._keep(values, field, _number(value, field.kind))
            elif kind in (_FOUR, _EIGHT):
                start, at = at, at + (4 if kind == _FOUR else 8)
                if at > end:
                    raise DamagedError("a field is cut off")
                if field is not None and _KINDS.get(field.kind) == kind:
                    self._keep(values, field, struct.unpack_from(_FIXED[field.kind][0], data, start)[0])
            elif kind == _GROUP:
                at = self._behind_group(key >> 3, at, end, level + 1)
            else:
                raise DamagedError("a field is of no known kind")
        return record

    def _bytes(self, values: dict[str, Any], field: Field, start: int, end: int, level: int) -> None:
        """Keep a field that holds bytes: text, a message, or numbers one behind the other."""
        if field.kind == "message":
            assert field.message is not None
            known = None if field.repeated else values.get(field.name)  # what is there twice is put together
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
        """Keep packed numbers: those of elements as an array, if they are many."""
        if end - start < _MANY:  # of which arrays would take longer
            self._few(values, field, start, end)
            return
        if field.kind in _FIXED:
            dtype = _FIXED[field.kind][1]
            if (end - start) % dtype.itemsize:
                raise DamagedError("numbers are cut off")
            found = np.frombuffer(self._data[start:end], dtype)
        else:
            found = _varints(self._data[start:end], field.kind)
        if field.name not in values and found.size >= _MANY and field.name.endswith("_data"):
            values[field.name] = found
            return
        self._count(found.size)
        self._list(values, field).extend(found.tolist())

    def _few(self, values: dict[str, Any], field: Field, at: int, end: int) -> None:
        """Keep few packed numbers."""
        numbers = self._list(values, field)
        self._count(end - at)
        if field.kind in _FIXED:
            code, dtype = _FIXED[field.kind]
            if (end - at) % dtype.itemsize:
                raise DamagedError("numbers are cut off")
            numbers.extend(number for (number,) in struct.iter_unpack(code, self._data[at:end]))
            return
        while at < end:
            value, at = self._varint(at, end)
            number = _number(value, field.kind)
            assert number is not None  # enumerations are not repeated
            numbers.append(number)

    def _list(self, values: dict[str, Any], field: Field) -> list[Any]:
        """The list of a repeated field's values, to add to: what comes in many pieces is not copied for each."""
        known = values.get(field.name)
        if not isinstance(known, list):
            known = values[field.name] = [] if known is None else known.tolist()
            self._count(len(known))
        return known

    def _keep(self, values: dict[str, Any], field: Field, value: Any) -> None:
        if value is None:  # of an enumeration that is younger
            return
        if field.repeated:
            self._list(values, field).append(value)
            return
        values[field.name] = value
        for other in field.beside:
            values.pop(other, None)

    def _behind_group(self, number: int, at: int, end: int, level: int) -> int:
        """The place behind a group, which no message of ONNX has."""
        if level > MOST_LEVELS:
            raise DamagedError(f"messages nest deeper than {MOST_LEVELS} levels")
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
        raise DamagedError("a group does not end")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A number of seven bits a byte, lowest first, and the place behind it."""
        number = 0
        for shift in range(0, 70, 7):
            if at >= end:
                break
            byte = self._data[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number & (1 << 64) - 1, at
        raise DamagedError("a number does not end")

    def _count(self, objects: int) -> None:
        """Count objects that are made, and see now and then that they fit into memory."""
        self._left -= objects
        if self._left >= 0:
            return
        self._seen += _LOOK - self._left
        self._left = _LOOK
        if self._seen * _OBJECT > free_bytes():  # as much again is needed for the graph
            raise SourceError(
                f"the model's description has more than {self._seen:,} fields, more than memory is free for."
            )


def _number(value: int, kind: str) -> int | None:
    """A varint as its field's type has it; None for what an enumeration does not know."""
    if kind == "uint64":
        return value
    if kind == "int64":
        return value - (1 << 64) if value >> 63 else value
    value &= (1 << 32) - 1
    value = value - (1 << 32) if value >> 31 else value
    return value if kind == "int32" or 0 <= value <= int(kind[4:]) else None


def _varints(data: memoryview, kind: str) -> np.ndarray:
    """Varints one behind the other, in the type of their field: int32, int64 or uint64."""
    bytes_ = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(bytes_ < 128)
    if bytes_.size and (not ends.size or ends[-1] != bytes_.size - 1):
        raise DamagedError("a number does not end")
    starts = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    if (sizes := ends - starts).size and sizes.max() > 9:
        raise DamagedError("a number does not end")
    if not ends.size:
        return np.empty(0, kind)
    shifts = 7 * (np.arange(bytes_.size) - np.repeat(starts, sizes + 1))
    parts = (bytes_ & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts).astype(kind)


# --- records as bytes -----------------------------------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """The bytes of a message."""
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
