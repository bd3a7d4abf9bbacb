"""Elements of tensors: equal to what the package onnx makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402

from cpuconv.protos import elements, wire  # noqa: E402
from cpuconv.protos.messages import TensorProto  # noqa: E402

NUMBERS = sorted(set(elements.DTYPES) & set(onnx.TensorProto.DataType.values()))


def read(tensor: onnx.TensorProto) -> np.ndarray:
    return elements.array(wire.decode(tensor.SerializeToString(), TensorProto))


def same(tensor: onnx.TensorProto) -> None:
    ours, theirs = read(tensor), numpy_helper.to_array(tensor)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("number", NUMBERS)
def test_types_are_those_of_the_package(number: int) -> None:
    assert elements.DTYPES[number] == helper.tensor_dtype_to_np_dtype(number)
    assert elements.NUMBERS[elements.DTYPES[number]] == number


def test_all_types_are_there_but_texts() -> None:
    assert set(onnx.TensorProto.DataType.values()) - {0, elements.STRINGS} <= set(elements.DTYPES)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 5), (2, 0), (7, 11)])
def test_raw_bytes(number: int, shape: tuple[int, ...]) -> None:
    tensor = onnx.TensorProto(data_type=number, dims=shape)
    size = elements.size(wire.decode(tensor.SerializeToString(), TensorProto))
    tensor.raw_data = np.random.default_rng(number).integers(0, 256, size, np.uint8).tobytes()
    same(tensor)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("count", [0, 1, 5, 6, 100])
def test_fields_of_numbers(number: int, count: int) -> None:
    field = helper.tensor_dtype_to_field(number)
    rng, tensor = np.random.default_rng(number), onnx.TensorProto(data_type=number)
    each = {"complex64": 2, "complex128": 2}.get(elements.DTYPES[number].name, 1)
    bits = elements._BITS.get(elements.DTYPES[number].name, 8)
    stored = -(-count * bits // 8) if bits in (2, 4) else count * each
    values = rng.integers(0, 255, stored)
    getattr(tensor, field).extend((values - 128 if field == "int32_data" else values).tolist())
    tensor.dims.append(count)
    same(tensor)


@given(st.integers(0, 30), st.binary(max_size=20), st.lists(st.integers(-2, 5), max_size=3))
def test_what_does_not_fit_is_an_error(number: int, raw: bytes, dims: list[int]) -> None:
    tensor = TensorProto(data_type=number, raw_data=raw, dims=dims)
    try:
        found = elements.array(tensor)
    except ValueError as error:
        assert str(error)
    else:
        assert list(found.shape) == dims


def test_whole_bytes_are_not_copied() -> None:
    data = onnx.TensorProto(data_type=1, dims=[2], raw_data=np.float32([1, 2]).tobytes()).SerializeToString()
    made = elements.array(wire.decode(data, TensorProto))
    assert made.base is not None and not made.flags.owndata and not made.flags.writeable
