"""Saved models with something wrong in them: one clear error, or a right result."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from cpuconv.network.saved import container  # noqa: E402
from support.damage.mutations import damaged, forged, header_of, outcome, with_header  # noqa: E402
from support.damage.saved import X, compiled  # noqa: E402


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model of fixed sizes."""
    path = tmp_path_factory.mktemp("saved") / "m.cpuconv"
    compiled(x=(1, 3, 8, 12)).save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One of open sizes, with a program."""
    path = tmp_path_factory.mktemp("saved") / "m.cpuconv"
    model = compiled()
    model.run(X)
    model.save(path)
    return path.read_bytes()


def expected(**stated: tuple[int, ...]) -> dict[str, np.ndarray]:
    return compiled(**stated).run(X)


def test_damage_is_noticed_or_does_no_harm(saved: bytes, opened: bytes, tmp_path: Path) -> None:
    rights, told = (expected(x=X["x"].shape), expected()), 0
    for seed in range(150):
        rng = random.Random(seed)
        found = outcome(tmp_path / "m.cpuconv", damaged((saved, opened)[seed % 2], rng), X)
        if isinstance(found, str):
            told += 1
            assert "m.cpuconv" in found
        else:
            right = rights[seed % 2]
            assert all(np.array_equal(found[name], right[name]) for name in right), seed
    assert told > 100


def test_every_block_that_is_read_is_checked(saved: bytes, tmp_path: Path) -> None:
    right, told = expected(x=X["x"].shape), 0
    blocks = header_of(saved)["blocks"]
    begin = len(saved) - blocks[-1][0] - container.rounded(blocks[-1][1])
    packed = {block for _, _, block in header_of(saved)["packed"]}
    for number, (start, size, _) in enumerate(blocks):
        place = begin + start + size - 1
        changed = saved[:place] + bytes([saved[place] ^ 0x80]) + saved[place + 1 :]
        found = outcome(tmp_path / "m.cpuconv", changed, X)
        assert isinstance(found, str) or all(np.array_equal(found[name], right[name]) for name in right)
        assert isinstance(found, str) or number not in packed
        told += isinstance(found, str)
    assert len(packed) < told < len(blocks)


def test_headers_are_not_trusted(saved: bytes, opened: bytes, tmp_path: Path) -> None:
    told = 0
    for seed in range(200):
        found = outcome(tmp_path / "m.cpuconv", forged((saved, opened)[seed % 2], random.Random(seed)), X)
        told += isinstance(found, str)
    assert told > 50


@pytest.mark.parametrize("header", [None, [], {}, 7, "x", {"blocks": []}, {"blocks": [[0, 1]]}])
def test_headers_of_another_kind(saved: bytes, tmp_path: Path, header: object) -> None:
    assert "m.cpuconv" in str(outcome(tmp_path / "m.cpuconv", with_header(saved, header), X))


@pytest.mark.parametrize(
    "block", [[-64, 64, ""], [32, 64, ""], [0, 0, ""], [0, 2**60, ""], [2**62, 64, ""], [0, 1.5, ""]]
)
def test_blocks_outside_of_the_file(saved: bytes, tmp_path: Path, block: list[object]) -> None:
    header = header_of(saved)
    header["blocks"][0] = block
    assert "is damaged: a block" in str(outcome(tmp_path / "m.cpuconv", with_header(saved, header), X))


def test_deep_nesting(saved: bytes, tmp_path: Path) -> None:
    header = header_of(saved)
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    header["programs"][0]["graph"]["nodes"][0][3]["activation"] = deep
    assert "m.cpuconv" in str(outcome(tmp_path / "m.cpuconv", with_header(saved, header), X))


def test_expressions_that_would_grow_without_end(saved: bytes, tmp_path: Path) -> None:
    header = header_of(saved)
    rows: list[list[object]] = [["operand", 0], *(["add", at, at] for at in range(60))]
    for node in header["programs"][0]["graph"]["nodes"]:
        if node[0] == "Elementwise":
            node[3]["expression"]["expression"] = rows
            break
    else:
        header["programs"][0]["graph"]["nodes"][0][3]["activation"] = {"expression": rows}
    assert "too long" in str(outcome(tmp_path / "m.cpuconv", with_header(saved, header), X))
