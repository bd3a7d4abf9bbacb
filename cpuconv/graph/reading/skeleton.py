"""A model's message without its long constants.

An ONNX file is one message of protocol buffers with the weights inside; decoded whole, they are copied several times.
So `skeleton` leaves long ones out and says where they lie, as ONNX says it of data in other files.

Source: https://protobuf.dev/programming-guides/encoding, and the numbers of fields in onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cpuconv.memory.mapped_files import Data

INSIDE = "\0"  # the location of data in the model itself; no path has a NUL
LONG = 1 << 12  # bytes of elements that are worth it


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
