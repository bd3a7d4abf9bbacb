"""Element types of problems: their text, what keys say of them, and those that there are no kernels for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.store.store import Store
from autotune.workload import Reading, SourceError
from cpuconv.conv.choice import model, select, tuned
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.sources.nearest_problem import nearest
from cpuconv.conv.session import TABLES
from cpuconv.elements import BF16, F16, F32, S8, S32, U8
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.solvers import BY_NAME
from cpuconv.tuning.workload import workload
from support.tuner.stored import timed

CANONICAL = Path(__file__).parents[2] / "bench" / "shapes" / "canonical.txt"
PROBLEM = ConvProblem(1, 64, 28, 28, 64, 3, 3, pads=(1, 1, 1, 1))
MIXED = Types(BF16, BF16, F32, F32)
BFLOATS, SCALED = Types(BF16, BF16, F32, BF16), Types(S8, S8, S32, F32)
HALF = Types(F16, F16, F16, F16)  # which no kernel computes


@pytest.mark.parametrize(
    "text, types",
    [
        ("f32:f32:f32", ALL_F32),
        ("u8:s8:u8", Types(U8, S8, S32, U8)),
        ("u8:s8:f32", Types(U8, S8, S32, F32)),
        ("bf16:bf16:f32", MIXED),
        ("f32:bf16:f32", Types(F32, BF16, F32, F32)),
        ("f32:s8:f32", Types(F32, S8, F32, F32)),
        ("f16:f16:f16:f16", Types(F16, F16, F16, F16)),
    ],
)
def test_text_reads_back(text: str, types: Types) -> None:
    assert Types.parse(text) == types and str(types) == text
    problem = replace(PROBLEM, types=types)
    assert ConvProblem.parse(problem.key) == problem


def test_one_name_is_all_types() -> None:
    assert Types.parse("f32") == ALL_F32
    assert Types.parse("s8") == Types(S8, S8, S32, S8)
    assert Types.parse("u8") == Types(U8, S8, S32, U8)  # weights have signs


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f32:f32",
        "f64:f32:f32",
        "f32:f32:f32:f32:f32",
        "f32:f32:s32:f32",
        "u8:s8:f32:u8",
        "bf16:bf16:bf16:f32",
        "f32:bf16x2:f32",
    ],
)
def test_what_are_no_types_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="^Argument 'types' must be "):
        ConvProblem.parse(f"ic3ih8oc4kh3 --dt={text}")


def test_types_stand_before_or_after_the_geometry() -> None:
    before, after = "--dt=u8:s8:u8 ic3ih8oc4kh3", 'ic3ih8oc4kh3n"a:b" --dt=u8:s8:u8 in=NHWC'
    assert ConvProblem.parse(before, in_layout="NHWC") == ConvProblem.parse(after)
    with pytest.raises(ArgumentError, match="Argument 'problem' must be "):
        ConvProblem.parse(f"{before} --dt=f32")


def test_sizes_in_bytes_are_of_the_types() -> None:
    p, plain = replace(PROBLEM, types=Types(U8, BF16, F32, F16)), PROBLEM
    assert (p.in_bytes * 4, p.weight_bytes * 2, p.out_bytes * 2) == (
        plain.in_bytes,
        plain.weight_bytes,
        plain.out_bytes,
    )
    assert p.stored_bytes * 4 == plain.stored_bytes // 2 * 3


def test_strings_of_float32_problems_do_not_change() -> None:
    """As they were before there were types: shapes of the benchmark, and keys of the tables that are shipped."""
    for line in CANONICAL.read_text().splitlines():
        if line and not line.startswith("#"):
            problem = ConvProblem.parse(line)
            settings = " in=NCHW out=NCHW act=none res=0 threads=1"
            assert problem.types is ALL_F32
            assert problem.key == problem.shape_key + settings
    tables = sorted(TABLES.glob("*.json"))
    assert tables
    for table in tables:
        content = json.loads(table.read_text())
        at = content["columns"]["rows"].index("problem")
        keys = {row[at] for device in content["devices"] for row in device["rows"]}
        assert keys
        for key in keys:
            problem = ConvProblem.parse(key)
            assert problem.key == key and problem.types == ALL_F32


def test_every_solver_says_what_it_does_not_compute() -> None:
    reasons = dict(model.applicable(replace(PROBLEM, types=HALF, r=1, s=1, pads=(0, 0, 0, 0))))
    assert reasons.keys() == BY_NAME.keys()
    for reason in reasons.values():
        assert "f16" in reason or "float16" in reason


@pytest.mark.parametrize("strategy", ["heuristic", "cached"])
def test_a_choice_of_other_types_is_refused_in_words(strategy: str) -> None:
    problem = replace(PROBLEM, types=HALF)
    message = "^Argument 'types' must be a combination that kernels support, not f16:f16:f16:f16.$"
    with pytest.raises(ArgumentError, match=message):
        select.choose(problem, strategy, Limits())
    unsigned, signs = replace(PROBLEM, types=Types.parse("u8:u8:u8")), "weights of uint8 are s8, or s16, less their"
    with pytest.raises(ArgumentError, match=f".*: {signs} zero points, not u8:u8:u8"):
        select.choose(unsigned, strategy, Limits())
    with pytest.raises(ArgumentError, match="fft: its operands are floats, and sums f32, not f16:f16:f16:f16"):
        select.choose(problem, strategy, Limits(), "fft")
    with pytest.raises(SourceError, match=message):
        workload.load("ic64ih28oc64kh3ph1 --dt=f16:f16:f16:f16")


def test_rows_of_other_types_decide_nothing(our_store: Store) -> None:
    name = str(model.within_limits(PROBLEM, Limits())[0].candidate)
    near = replace(PROBLEM, h=29)
    our_store.put([timed(replace(near, types=MIXED), name, 1e-4)])
    assert nearest(PROBLEM) is None
    assert tuned.named(replace(PROBLEM, types=HALF), name) is None
    our_store.put([timed(near, name, 1e-4)])
    assert nearest(PROBLEM) == name
    assert nearest(replace(PROBLEM, types=Types(F32, BF16))) is None
    assert nearest(replace(PROBLEM, types=MIXED)) == name


def test_the_tuner_reads_lists_in_other_types() -> None:
    (plain,) = workload.load("ic64ih28oc64kh3ph1", Reading(types="bf16"))
    (stated,) = workload.load("ic64ih28oc64kh3ph1 --dt=s8:s8:f32", Reading(types="u8"))
    assert (plain.key, stated.key) == (replace(PROBLEM, types=BFLOATS).key, replace(PROBLEM, types=SCALED).key)
    assert workload.summary(plain.key) == "64→64 3x3 @28x28 bf16:bf16:bf16"
    (sums,) = workload.load("ic64ih28oc64kh3ph1", Reading(("auto", "auto"), types="u8:s8:s32"))
    isa, stored = current(), ConvProblem.parse(sums.key)
    assert (stored.in_layout, stored.out_layout) == (f"NCHW{isa.block(U8)}c", f"NCHW{isa.block(S32)}c")
    for wrong in ("u9", "u8:s8", "u8:s8:s32"):
        with pytest.raises(SourceError, match="Argument '(types|activation)' must be"):
            workload.load("ic64ih28oc64kh3ph1 in=NCHW out=NCHW act=relu res=0 threads=1", Reading(types=wrong))
