"""Element types: sizes, and their names in LLVM's language."""

from __future__ import annotations

import copy
import pickle

import llvmlite.binding as llvm
import numpy as np
import pytest

from cpuconv.elements import BF16, F16, OF_DTYPE, TABLE, Element, represents_exactly, to_float32


@pytest.mark.parametrize("element", TABLE.values(), ids=str)
def test_an_element_has_the_size_of_its_dtype_and_of_its_llvm_type(element: Element) -> None:
    module = llvm.parse_assembly(f"@x = global {element.llvm} zeroinitializer")
    kind = module.get_global_variable("x").global_value_type
    data = llvm.create_target_data("e-m:e-i64:64-n8:16:32:64-S128")
    assert element.bytes == element.dtype.itemsize == data.get_abi_size(kind)


def test_names_are_keys() -> None:
    assert [element.name for element in TABLE.values()] == list(TABLE)


def test_there_is_one_object_of_each() -> None:
    for element in TABLE.values():
        assert pickle.loads(pickle.dumps(element)) is element is copy.deepcopy(element)
        assert OF_DTYPE[element.outside] is element and element.outside.itemsize == element.bytes


@pytest.mark.parametrize("element", (F16, BF16), ids=str)
def test_numbers_of_an_element_are_told_from_others(element: Element) -> None:
    every = to_float32(np.arange(1 << 16, dtype=np.uint16).view(element.dtype), element)
    every = every[~np.isnan(every)]
    assert represents_exactly(element, every) and represents_exactly(element, every[::3].reshape(1, -1).T)
    between = np.nextafter(every[np.isfinite(every)], np.float32(np.inf))
    assert not any(represents_exactly(element, np.append(every, number)) for number in between[:: len(between) // 50])
    assert not represents_exactly(element, np.float32([1, np.nan])) and not represents_exactly(F16, np.float32([65536]))
