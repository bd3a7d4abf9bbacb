"""Messages as records: equal, field by field, to what the package onnx reads of the same bytes."""

from __future__ import annotations

import pathlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from google.protobuf.message import DecodeError, Message  # noqa: E402

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.protos import wire  # noqa: E402
from cpuconv.protos.messages import MESSAGES, ModelProto, NodeProto, Record, TensorProto  # noqa: E402
from cpuconv.protos.wire import DamagedError, decode, encode  # noqa: E402
from support.damage.damageable import damageable  # noqa: E402

DATA = pathlib.Path(onnx.__file__).parent / "backend/test/data"
FILES = sorted(path for path in DATA.rglob("*") if path.suffix in (".onnx", ".pb"))


def plain(message: object) -> object:
    """A message of either kind as dicts and lists, of the fields that are there."""
    if isinstance(message, Message):
        return {field.name: plain(value) for field, value in message.ListFields()}
    if isinstance(message, Record):
        return {name: plain(value) for name, value in vars(message).items() if not _is_empty(value)}
    if isinstance(message, memoryview):
        return bytes(message)
    if isinstance(message, (str, bytes, int)):
        return message
    if isinstance(message, float):
        return struct.pack("<d", message)  # NaN is itself
    return [plain(each) for each in (message.tolist() if isinstance(message, np.ndarray) else message)]


def _is_empty(value: object) -> bool:
    """Whether it is a repeated field without elements, which the package does not list."""
    return isinstance(value, (list, np.ndarray)) and not len(value)


def _is_repeated(field: object) -> bool:
    """Of a field as the package describes it, in its old and its new words."""
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def agree(data: bytes, name: str = "ModelProto") -> None:
    """Both readers read the same of some bytes, or both refuse them."""
    theirs = getattr(onnx, name)() if hasattr(onnx, name) else getattr(onnx.onnx_ml_pb2, name)()
    try:
        theirs.ParseFromString(data)
    except DecodeError:
        with pytest.raises(DamagedError):
            decode(data, MESSAGES[name])
        return
    ours = decode(data, MESSAGES[name])
    assert plain(ours) == plain(theirs)
    assert plain(decode(encode(ours), MESSAGES[name])) == plain(theirs)


def test_every_field_is_known() -> None:
    kinds = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 9: "string", 11: "message", 12: "bytes"}
    todo, seen = [onnx.ModelProto.DESCRIPTOR], set()
    while todo:
        described = todo.pop()
        if described.full_name in seen:
            continue
        seen.add(described.full_name)
        fields = MESSAGES[described.full_name.removeprefix("onnx.")].FIELDS
        theirs = {field.number: field for field in described.fields}
        assert theirs.keys() <= fields.keys()  # an older package has fewer
        for number, field in theirs.items():
            ours = fields[number]
            assert ours.name == field.name and ours.repeated == _is_repeated(field)
            highest = max((value.number for value in field.enum_type.values), default=0) if field.enum_type else 0
            assert ours.kind == (f"enum{highest}" if field.enum_type else kinds[field.type])
            assert bool(ours.beside) == (field.containing_oneof is not None)
            if field.message_type:
                assert ours.message is MESSAGES[field.message_type.full_name.removeprefix("onnx.")]
                todo.append(field.message_type)
    assert len(seen) > 15


@pytest.mark.parametrize("part", range(8))
def test_every_file_of_onnx_is_read_as_the_package_reads_it(part: int) -> None:
    assert len(FILES) > 100  # some packages come with fewer
    for path in FILES[part::8]:
        agree(path.read_bytes(), "ModelProto" if path.suffix == ".onnx" else "TensorProto")


def test_what_is_not_there_has_its_default() -> None:
    node, theirs = NodeProto(), onnx.NodeProto()
    assert list(node.input) == list(theirs.input) and node.name == theirs.name
    attribute = MESSAGES["AttributeProto"]()
    assert attribute.g.node == () and attribute.f == 0.0 and attribute.s == b"" and not attribute.HasField("g")
    with pytest.raises(AttributeError, match="NodeProto has no field 'later'"):
        _ = node.later


def test_bytes_of_tensors_are_views() -> None:
    data = onnx.TensorProto(raw_data=b"12345678", data_type=1, dims=[2]).SerializeToString()
    assert decode(data, TensorProto).raw_data.obj is data


# --- forms that libraries write seldom ------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def field(number: int, kind: int, body: bytes) -> bytes:
    return varint(number << 3 | kind) + (varint(len(body)) if kind == 2 else b"") + body


NUMBERS = st.integers(-(2**63), 2**64 - 1)
TYPED = {4: ("f", 5), 10: ("d", 1)}  # fields of TensorProto with numbers of fixed size


@given(st.lists(st.tuples(st.sampled_from([1, 2, 5, 7, 11, 14]), st.lists(NUMBERS, max_size=50), st.booleans())))
def test_numbers_packed_and_single_mixed(parts: list[tuple[int, list[int], bool]]) -> None:
    data = b""
    for number, values, packed in parts:
        each = list(map(varint, values))
        data += field(number, 2, b"".join(each)) if packed else b"".join(field(number, 0, one) for one in each)
    agree(data, "TensorProto")


@given(st.lists(st.tuples(st.sampled_from([4, 10]), st.lists(st.floats(width=32), max_size=50), st.booleans())))
def test_floats_packed_and_single_mixed(parts: list[tuple[int, list[float], bool]]) -> None:
    data = b""
    for number, values, packed in parts:
        letter, kind = TYPED[number]
        each = [struct.pack(f"<{letter}", value) for value in values]
        data += field(number, 2, b"".join(each)) if packed else b"".join(field(number, kind, one) for one in each)
    agree(data, "TensorProto")


@pytest.mark.parametrize(
    "data",
    [
        field(7, 2, field(2, 2, b"a")) + field(7, 2, field(1, 2, field(4, 2, b"Relu"))),  # a graph in two parts
        field(7, 2, field(2, 2, b"\xff\xfe")),  # a name that is no text
        field(99, 2, b"later") + field(98, 0, varint(7)) + field(97, 1, bytes(8)) + field(96, 5, bytes(4)),
        field(50, 3, field(1, 0, b"\x01") + field(2, 3, b"") + field(2, 4, b"")) + field(50, 4, b""),  # a group
        field(50, 3, field(51, 4, b"")),
        field(50, 4, b""),
        field(50, 6, b""),
        field(0, 0, b"\x01"),
        field(1, 2, b"text in the place of a number"),
        field(1, 0, b"\xff" * 9 + b"\x01"),
        field(1, 0, b"\xff" * 10),
        field(1, 0, b"\xff"),
        field(7, 2, b"cut off")[:-1],
        field(7, 2, field(5, 2, field(4, 2, b"123"))),  # floats that are cut off
        field(7, 2, field(1, 2, field(5, 2, field(20, 0, varint(77)) + field(20, 0, varint(2))))),  # an unknown type
        field(7, 2, field(11, 2, field(2, 2, field(1, 2, b"") + field(4, 2, b"")))),  # of two types the last counts
    ],
)
def test_seldom_forms(data: bytes) -> None:
    agree(data)


def nested(levels: int) -> bytes:
    data = b""
    for level in range(levels):
        data = field(*((4, 2, data) if level % 2 == 0 else (1, 2, data)))
    return data


@pytest.mark.parametrize("levels", [90, 98, 99, 100, 101, 102, 500])
def test_messages_nest_as_deep_as_libraries_allow(levels: int) -> None:
    agree(nested(levels), "TypeProto")


@given(st.integers(0, 2**16), st.integers(0, 255), st.booleans())
def test_damaged_models(place: int, byte: int, cut: bool) -> None:
    data = bytearray(MODEL)
    place %= len(data)
    agree(bytes(data[:place]) if cut else bytes(data[:place]) + bytes([byte]) + bytes(data[place + 1 :]))


MODEL = damageable()[0].SerializeToString()


def test_a_description_that_memory_is_not_free_for(monkeypatch: pytest.MonkeyPatch) -> None:
    data = field(7, 2, field(1, 2, b"") * 300_000)
    assert len(decode(data, ModelProto).graph.node) == 300_000
    monkeypatch.setattr(wire, "free_bytes", lambda: 60 << 20)
    with pytest.raises(SourceError, match="fields, too many for the free memory"):
        decode(data, ModelProto)


def test_text_of_a_record() -> None:
    assert repr(NodeProto(name="a", input=["x"])) == "NodeProto(name='a', input=['x'])"
    assert NodeProto(name="a") == NodeProto(name="a") != NodeProto(name="b")
    assert NodeProto(name="a", domain="d").changed(name="b", domain=None) == NodeProto(name="b")
