"""The instructions that low precision needs: each loop holds its instruction, and a short run times what is offered."""

from __future__ import annotations

import json
import sys

import llvmlite.binding as llvm
import pytest

from bench import instructions
from bench.instructions import CHAINS, TILES, VECTORS, Tiles, configuration, products, vector_loop


def assembly(text: str, machine: str, features: str) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu")
    return target.create_target_machine(features=features, opt=2).emit_assembly(llvm.parse_assembly(text))


@pytest.mark.parametrize("dot", VECTORS, ids=str)
def test_a_loop_holds_its_instruction_alone(dot):
    found = assembly(vector_loop(dot), dot.machine, f"+{dot.feature}")
    assert found.count(f"\t{dot.name}") == CHAINS
    assert dot.bits != 512 or found.count("zmm") >= 3 * CHAINS


@pytest.mark.parametrize("name, feature, _", TILES)
@pytest.mark.parametrize("kept", [True, False])
def test_two_by_two_tiles_use_each_pair_once(name, feature, _, kept):
    turn = [line.split("(")[1] for line in products(name, kept).splitlines()]
    used = [tuple(int(word.split()[1].rstrip(")")) for word in line.split(",")) for line in turn]
    assert sorted(sums for sums, _, _ in used) == [0, 1, 2, 3]
    assert {(pixels, weights) for _, pixels, weights in used} == {(p, w) for p in (4, 5) for w in (6, 7)}
    assert (used[0][2] == used[1][2]) is kept


def test_a_configuration_has_eight_tiles():
    data = configuration(rows=5)
    assert len(data) == 64 and data[0] == 1
    assert list(data[16:32:2]) == [64] * 8 and not data[17:32:2].any()
    assert list(data[48:56]) == [5] * 6 + [16] * 2


def test_a_short_run_times_what_is_offered(monkeypatch, capsys):
    monkeypatch.setattr(instructions, "SECONDS", 1e-5)
    monkeypatch.setattr(instructions, "ROUNDS", 1)
    monkeypatch.setattr(instructions, "tile_rows", lambda second: iter(()))
    monkeypatch.setattr(sys, "argv", ["instructions", "--json"])
    instructions.main()
    printed = json.loads(capsys.readouterr().out)
    features = llvm.get_host_cpu_features()
    offered = [str(d) for d in VECTORS if d.machine == instructions.machine() and features.get(d.feature)]
    assert [name for name, *_ in printed["rows"]] == offered
    assert all(cycles > 0 and macs > 0 for _, cycles, macs in printed["rows"])


def test_what_is_not_offered_is_named_and_not_run(monkeypatch):
    monkeypatch.setattr(llvm, "get_host_cpu_features", dict)
    rows, absent = instructions.measure()
    assert rows == []
    here = [str(dot) for dot in VECTORS if dot.machine == instructions.machine()]
    assert absent[: len(here)] == here


@pytest.mark.skipif(not instructions.tile_leave(), reason="AMX is not offered here")
def test_tiles_run(monkeypatch):
    monkeypatch.setattr(instructions, "SECONDS", 1e-5)
    monkeypatch.setattr(instructions, "ROUNDS", 1)
    assert Tiles(products("tdpbusd")).seconds() > 0
