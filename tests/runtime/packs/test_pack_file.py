"""Packs give back what they were made of, and say so where they are damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.loading import object_file
from cpuconv.runtime.code.packs import pack_file, packing
from cpuconv.runtime.code.packs.pack_file import Damaged, Pack
from cpuconv.runtime.code.packs.stripped import SYMBOL, strip_to_code, wrap_code

RANDOM = random.Random(3)


def name(kind: str, number: int) -> str:
    return f"{kind}-{number:020x}"


KERNELS = {
    name(kind, 100 * place + number): RANDOM.randbytes(3_000) * (1 + number % 7)
    for place, kind in enumerate(("gemm", "copy"))
    for number in range(20)
} | {name("copy", 7_000): b"equal", name("gemm", 7_001): b"equal", name("gemm", 7_002): b""}
WHOLE = packing.packed({"any": KERNELS, "some": dict(list(KERNELS.items())[:5])})


def test_every_kernel_is_found_by_its_name() -> None:
    pack = pack_file.of_bytes(WHOLE)
    assert pack.parts == ("any", "some")
    part, some = pack.part("any"), pack.part("some")
    assert (len(part), len(some)) == (len(KERNELS), 5)
    assert {each: part.get(each) for each in KERNELS} == KERNELS
    assert {each: some.get(each) for each in KERNELS if each in some} == dict(list(KERNELS.items())[:5])
    assert part.get(name("gemm", 99_999)) is None and name("gemm", 99_999) not in part
    with pytest.raises(Damaged):
        pack.part("none")


def test_equal_kernels_give_equal_bytes_in_any_order() -> None:
    some = dict(list(KERNELS.items())[:5])
    assert packing.packed({"some": some, "any": dict(reversed(KERNELS.items()))}) == WHOLE


def test_parts_share_what_is_equal() -> None:
    alone = packing.packed({"any": KERNELS})
    both = packing.packed({"any": KERNELS, "other": KERNELS})
    assert len(both) - len(alone) < 2_000 < len(alone) / 10


def test_one_kernel_is_read_without_the_others() -> None:
    read = []

    def part(start: int, size: int) -> bytes:
        read.append(size)
        return WHOLE[start : start + size]

    found = Pack(part).part("any")
    begun = sum(read)
    assert found.get(name("gemm", 3)) and begun < 5_000 and sum(read) - begun < len(WHOLE) / 2
    assert found.get(name("gemm", 3)) and len(read) == 4  # blocks stay for a while


def test_equal_kernels_are_stored_once() -> None:
    once = {name("gemm", number): RANDOM.randbytes(9_000) for number in range(1)}
    (content,) = once.values()
    many = {name("gemm", number): content for number in range(8)}
    assert len(packing.packed({"any": many})) < len(content) + 1_000


def test_of_kernels_that_ask_for_nothing_the_code_alone_is_stored() -> None:
    codes = {"": RANDOM.randbytes(16), "0123456789abcdef": RANDOM.randbytes(48), "f" * 16: RANDOM.randbytes(1_000)}
    kernels = {
        name("gemm", number): KernelBody(SYMBOL, ir_hash, wrap_code(object_file.X86, code)).to_bytes()
        for number, (ir_hash, code) in enumerate(codes.items())
    }
    whole = packing.packed({"any": kernels})
    assert {each: pack_file.of_bytes(whole).part("any").get(each) for each in kernels} == kernels
    assert len(whole) < sum(map(len, codes.values())) + 400 < sum(map(len, kernels.values()))
    found = [strip_to_code(KernelBody.of(kernel).code) for kernel in kernels.values()]
    assert found == [(object_file.X86, code) for code in codes.values()]


def test_a_file_of_none_is_a_pack() -> None:
    part = pack_file.of_bytes(packing.packed({"any": {}})).part("any")
    assert len(part) == 0 and part.get(name("gemm", 0)) is None


def wrong(content: bytes) -> int:
    """How many kernels of a file cannot be read; none is another one."""
    try:
        part = pack_file.of_bytes(content).part("any")
    except Damaged:
        return len(KERNELS)
    lost = 0
    for each, kernel in KERNELS.items():
        try:
            assert part.get(each) == kernel
        except Damaged:
            lost += 1
    return lost


def test_a_changed_byte_is_noticed_wherever_a_kernel_depends_on_it() -> None:
    noticed = 0
    for seed in range(100):
        content = bytearray(WHOLE)
        content[random.Random(seed).randrange(len(WHOLE) if seed % 2 else 3_000)] ^= 1 << seed % 8
        noticed += wrong(bytes(content)) > 0
    assert noticed > 80  # the others lie in the part that is not read here, or behind the end of a compressed piece


@pytest.mark.parametrize("size", [0, 1, 8, 15, 16, 47, 48, 49, 300, len(WHOLE) // 2, len(WHOLE) - 100])
def test_a_file_that_was_cut_is_noticed(size: int) -> None:
    assert wrong(WHOLE[:size]) > 0


def test_noise_is_no_pack() -> None:
    for size in (0, 10, 48, 100, 10_000):
        with pytest.raises(Damaged):
            pack_file.of_bytes(RANDOM.randbytes(size))


def test_a_file_that_went_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        pack_file.of_file(tmp_path / "none.pack")
    path = tmp_path / "a.pack"
    packing.write(path, {"any": KERNELS})
    part = pack_file.of_file(path).part("any")
    path.unlink()
    with pytest.raises(Damaged):
        part.get(name("gemm", 3))
