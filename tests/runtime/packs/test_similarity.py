"""Blocks hold what is alike, all of it once, and no more than they may."""

from __future__ import annotations

import random

import pytest

from cpuconv.runtime.code.packs.similarity import blocks

RANDOM = random.Random(5)


def changed(content: bytes) -> bytes:
    """The content with one byte in a hundred changed."""
    found = bytearray(content)
    for _ in range(len(found) // 100):
        found[RANDOM.randrange(len(found))] ^= 1
    return bytes(found)


FAMILIES = [[changed(base) for _ in range(8)] for base in (RANDOM.randbytes(2_000) for _ in range(5))]
MIXED = [family[number] for number in range(8) for family in FAMILIES]


def test_a_block_holds_one_family() -> None:
    found = list(blocks([MIXED], 16_000))
    assert sorted(map(sorted, found)) == sorted(map(sorted, FAMILIES))


def test_the_first_comes_first_and_the_same_order_gives_the_same_blocks() -> None:
    found = list(blocks([MIXED], 16_000))
    assert found[0][0] == MIXED[0] and found == list(blocks([list(MIXED)], 16_000))


def test_groups_follow_one_another() -> None:
    found = list(blocks([FAMILIES[0][:4], FAMILIES[1], FAMILIES[0][4:]], 12_000))
    assert [len(each) for each in found] == [6, 6, 4]
    assert {*found[0][:4]} == {*FAMILIES[0][:4]} and {*found[1][2:]} | {*found[0][4:]} >= {*FAMILIES[1][:4]}


@pytest.mark.parametrize("most", [1, 100, 5_000, 1 << 20])
def test_all_is_there_once_and_blocks_are_no_larger_than_they_may_be(most: int) -> None:
    group = [b"", b"a", b"abcde", b"abcdef", *MIXED[:9], RANDOM.randbytes(7_000)]
    found = list(blocks([group, [], [b"xy"]], most))
    assert sorted(sum(found, [])) == sorted([*group, b"xy"])
    assert all(each and (len(each) == 1 or sum(map(len, each)) <= most) for each in found)


def test_of_nothing_there_are_no_blocks() -> None:
    assert list(blocks([], 9)) == list(blocks([[]], 9)) == []
