"""Static analysis of machine code for Arm: the in-order model, and the shares that micro-kernels must reach."""

from __future__ import annotations

import re

import pytest

from bench.mca import __main__ as mca
from bench.mca import cores

FMA = "fmla v{0}.4s, v30.4s, v31.s[0]"
MIN_SHARES = {  # share of the bound, by the start of a loop's name
    "cortex-a76": {
        **dict.fromkeys(("GEMM 2x", "GEMM 4x", "planar", "first layer", "float16"), 0.97),
        "depthwise 3x3": 0.8,
        "Winograd F(4,3) output": 0.76,
    },
    "neoverse-v1": {"Winograd F(4,3) output": 0.83},
    "cortex-a55": {
        **dict.fromkeys(("GEMM 1x", "GEMM 2x", "GEMM 3x", "GEMM 4x", "planar"), 0.88),
        "GEMM 3x7 sdot, u8": 0.6,
        "depthwise 3x3 s2": 0.52,
        "Winograd F(4,3) input": 0.45,
        "Winograd F(4,3) output": 0.54,
    },
}


def fmas(count: int) -> list[str]:
    return [FMA.format(number) for number in range(count)]


@pytest.mark.parametrize(
    "added, cycles",
    [
        ([], 8),
        (["ldr d20, [x1]"] * 8, 14),  # one issues with the last FMA, and one with the first of the next turn
        (["ldr q20, [x1]"], 10),  # nothing issues at the same time
        (["ldp q20, q21, [x1]"], 12),
        (["add x1, x1, #16"] * 4, 10),  # a chain, whose first link issues with the last FMA
    ],
)
def test_cycles_of_fmas_and_other_instructions(added, cycles):
    assert cores.in_order([*fmas(8), *added]) == pytest.approx(cycles, abs=0.51)


def test_loads_of_eight_bytes_run_beside_fmas():
    assert cores.in_order([line for fma in fmas(8) for line in (fma, "ldr d20, [x1]")]) == pytest.approx(8)


def test_a_chain_takes_the_latency():
    assert cores.in_order([FMA.format(0)] * 3) == pytest.approx(12)
    assert cores.in_order(["ldr s31, [x1], #4", FMA.format(0), FMA.format(1)]) >= 4


@pytest.mark.parametrize("cpu", MIN_SHARES)
def test_shares(cpu):
    try:
        cores.tool()
    except cores.Unavailable as missing:
        pytest.skip(str(missing))
    rows = mca.figures_of(cpu, "^(?:" + "|".join(map(re.escape, MIN_SHARES[cpu])) + ")")
    for start, least in MIN_SHARES[cpu].items():
        alike = [row for row in rows if row["loop"].startswith(start) and ("dot" in start or "dot" not in row["loop"])]
        assert alike
        for row in alike:
            assert row["share"] >= least, row
            assert row["spills"] == 0 or "Winograd" in start, row


def test_a_wrong_class_is_named(capsys):
    with pytest.raises(SystemExit):
        mca.main(["--cpus", "pentium"])
    assert "pentium" in capsys.readouterr().err
