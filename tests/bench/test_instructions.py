"""The QEMU plugin: classes of executed instructions between its marks."""

from __future__ import annotations

import json
import struct
import subprocess

import pytest

from bench.instructions import plugin

COUNTED = (
    0x4F821020,  # fmla v0.4s, v1.4s, v2.s[0]
    0x4E22CC20,  # fmla v0.4s, v1.4s, v2.4s
    0x4E829420,  # sdot v0.4s, v1.16b, v2.16b
    0x4E22D420,  # fadd v0.4s, v1.4s, v2.4s
    0xAD4007E0,  # ldp q0, q1, [sp]
    0x3DC003E0,  # ldr q0, [sp]
    0x4C402BE0,  # ld1 {v0.4s-v3.4s}, [sp]
    0x3D8003E0,  # str q0, [sp]
    0xF94003E1,  # ldr x1, [sp]
)


def call(number: int, argument: int) -> list[int]:
    """Code of a system call with one argument."""
    low, high = number & 0xFFFF, number >> 16
    return [0xD2800008 | low << 5, 0xF2A00008 | high << 5, 0xD2800000 | argument << 5, 0xD4000001]


def program(words: list[int]) -> bytes:
    """A static executable of aarch64, as ELF."""
    code = struct.pack(f"<{len(words)}I", *words)
    base, head = 0x400000, 64 + 56
    size = head + len(code)
    elf = b"\x7fELF\x02\x01\x01" + bytes(9)
    elf += struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, base + head, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return elf + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000) + code


def test_classes(tmp_path):
    try:
        emulator = plugin.build(tmp_path)
    except plugin.Unavailable as missing:
        pytest.skip(str(missing))
    path = tmp_path / "program"
    path.write_bytes(program([*COUNTED, *call(plugin.START, 0), *COUNTED * 2, *call(plugin.STOP, 1), *call(93, 0)]))
    path.chmod(0o755)
    done = subprocess.run([*emulator, "-cpu", "max", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["multiply_adds"] == 2 * 3
    assert found["vector_loads"] == 2 * (2 + 1 + 4)
    assert found["vector_stores"] == 2
    assert len(COUNTED) * 2 <= found["instructions"] <= len(COUNTED) * 2 + 8  # the block of a mark counts as a whole
