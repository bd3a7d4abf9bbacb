"""Stripped object files have the same code and constants at the same places."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import cpuconv
from cpuconv.runtime.code import checked_file, kernel_files
from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.loading import loader, object_file
from cpuconv.runtime.code.loading.object_file import Malformed, Unsupported
from cpuconv.runtime.code.packs.stripped import SYMBOL, stripped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="objects are ELF files on Linux")


@pytest.fixture(scope="module")
def files() -> list[tuple[bytes, str]]:
    """Object files of kernels, and the functions in them."""
    cpuconv.conv2d(np.ones((1, 8, 9, 9), np.float32), np.ones((8, 8, 3, 3), np.float32), threads=1)
    found = []
    for path in sorted(kernel_files.folder().path.glob("*.o"))[:40]:
        kernel = KernelBody.of(checked_file.read(path))
        found.append((kernel.code, kernel.symbol))
    return found


def test_memory_is_the_same(files: list[tuple[bytes, str]]) -> None:
    assert len(files) >= 5
    for code, symbol in files:
        small = stripped(code, symbol)
        before, after = object_file.read(code), object_file.read(small)
        known = {name: 0x7F0012340000 + 64 * place for place, name in enumerate(before.names)}
        assert (before.names, before.size, before.machine) == (after.names, after.size, after.machine)
        assert before.offset(symbol) == after.offset(SYMBOL)
        assert before.at(0x7F0012000000, known) == after.at(0x7F0012000000, known)
        assert stripped(small, SYMBOL) == small
        loader.load(small, SYMBOL)


def test_llvm_links_them_too(files: list[tuple[bytes, str]]) -> None:
    from cpuconv.runtime.code.loading import llvm_loader

    for code, symbol in files[:5]:
        address, _ = llvm_loader.by_engine(stripped(code, symbol), SYMBOL)
        assert address


def test_what_is_no_object_file_is_refused(files: list[tuple[bytes, str]]) -> None:
    code, symbol = files[0]
    with pytest.raises(Unsupported):
        stripped(b"no ELF", symbol)
    with pytest.raises(Malformed):
        stripped(code[: len(code) // 2], symbol)
    with pytest.raises(Malformed):
        stripped(code, "another")
