"""Depthwise convolution of bytes by four taps: what its words, its endings and its machine code are."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
import layouts
from bench.mca.assembly import vector_spills
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.elements import S8, U8
from cpuconv.isa import current
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.packing.tap_weights import Taps, TapWords
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import depthwise_taps
from support import typed

ISA = current()


@pytest.mark.parametrize(
    "taps, words, patterns",
    [
        (Taps(1, 3, 1, 1), ((0, 1, 2),), ((0, 1, 2, -1),)),
        (Taps(2, 3, 1, 1), ((0, 1, 2, 3),), ((0, 1, 2, -1), (-1, 0, 1, 2))),
        (Taps(2, 3, 2, 1), ((0, 1, 2, 3), (4,)), ((0, 1, 2, -1), (-1, -1, 0, 1), (2, -1, -1, -1))),
        (Taps(2, 3, 1, 2), ((0, 1, 2, 3), (4, 5)), ((0, -1, 1, -1), (-1, 0, -1, 1), (2, -1, -1, -1), (-1, 2, -1, -1))),
        (Taps(1, 5, 1, 1), ((0, 1, 2, 3), (4,)), ((0, 1, 2, 3), (4, -1, -1, -1))),
        (Taps(2, 3, 1, 1, 2), ((0, 1), (2, 3)), ((0, 1), (-1, 0), (2, -1), (1, 2))),
        (Taps(1, 3, 2, 1, 2), ((0, 1), (2,)), ((0, 1), (2, -1))),
    ],
)
def test_rows_of_words(taps, words, patterns):
    assert taps.words == words and taps.patterns == patterns


@pytest.mark.parametrize("product, each", [("vpdpbusd", 4), ("pairs", 4), ("pmaddwd", 2)])
def test_packed_words(product, each):
    lanes, k, taps = 4, 11, Taps(2, 3, 1, 1, each)
    weight = np.random.default_rng(0).integers(-128, 128, (k, 1, 3, 2)).astype(np.int8)
    form = TapWords(lanes, 2, k, 2, taps, product, S8)
    packed = form.pack(weight)
    assert packed.nbytes == form.size == 2 * form.piece
    parts, dtype = BY_NAME[product].parts, BY_NAME[product].packed.dtype
    found = packed.view(dtype).reshape(2, 2, len(taps.patterns), parts, 2, lanes, each // parts)
    for channel in range(16):
        piece, vector, lane = channel // 8, channel // lanes % 2, channel % lanes
        for column in range(2):
            for pattern, meets in enumerate(taps.patterns):
                for byte, tap in enumerate(meets):
                    expected = weight[channel, 0, tap, column] if channel < k and tap >= 0 else 0
                    assert found[piece, column, pattern, byte % parts, vector, lane, byte // parts] == expected


@pytest.mark.parametrize("types", ["u8:s8:u8", "s8:s8:s8"])
@pytest.mark.parametrize("activation", [None, ("relu",), ("clip", -3.0, 5.0)])
def test_sums_far_beyond_the_result_are_clamped(types, activation):
    """Products with scales leave int32 and float32 on both sides, and biases are the ends of int32."""
    problem = typed.blocked(ConvProblem.parse("g70ic70ih5iw6oc70kh3ph1", activation=activation), types)
    rng = np.random.default_rng(1)
    least = 0 if types.startswith("u8") else -128
    x = layouts.from_nchw(
        rng.integers(least, least + 256, problem.in_shape).astype(problem.types.x.dtype), problem.in_layout
    )
    w = rng.integers(-128, 128, problem.weight_shape).astype(np.int8)
    bias = rng.choice(np.array([-(2**31), -(2**24) - 1, 0, 2**24 + 1, 2**31 - 1]), 70).astype(np.int32)
    scales = cpuconv.Quantization(
        x_scale=1.0,
        x_zero_point=least + 7,
        w_scale=10.0 ** rng.integers(-12, 38, 70),
        y_scale=1.0,
        y_zero_point=least + 99,
    )
    expected = reference.conv2d(x, w, bias, problem, None, scales)
    for params in depthwise_taps.candidates(problem, ISA):
        candidate = Candidate(depthwise_taps.SOLVER, params)
        plan = cpuconv.plan(
            problem.in_shape, w, bias, padding=1, groups=70, activation=activation, quantization=scales,
            x_dtype=problem.types.x.dtype, in_layout=problem.in_layout, out_layout=problem.out_layout,
            algorithm=str(candidate),
        )  # fmt: skip
        np.testing.assert_array_equal(plan(x), expected, err_msg=str(candidate))


@pytest.mark.skipif(ISA.name not in ("avx512", "avx2"), reason="counts are of code for AVX")
@pytest.mark.parametrize("line", ["g64ic64ih58oc64kh3", "g64ic64ih57oc64kh3sh2"])
def test_machine_code(line):
    """Each product is an instruction, and of 3x3 kernels with 32 registers no sum leaves its own; without padding, for
    which tiles have a second body."""
    problem = typed.blocked(ConvProblem.parse(line), "u8:s8:u8")
    params = next(iter(depthwise_taps.candidates(problem, ISA)))
    (step,) = assemble(problem, Candidate(depthwise_taps.SOLVER, params)).steps
    strips = step.args["strips"]
    assert isinstance(strips, tuple) and problem.types.x == U8
    tile = strips[1].tile
    text = strips[1].kernel.assembly(tile)
    products = params.cols * problem.s * depthwise_taps._group_uses(problem, params.rows, ISA) * tile.vectors
    if tile.product in ("vpdpbusd", "vpdpwssd"):
        assert text.count(f"{tile.product}\t") == products
    else:
        assert tile.product == "pmaddwd" and text.count("vpmaddwd\t") == products
        assert text.count("vpaddd\t") == products  # none is added to another before
    if ISA.registers < 32:
        return
    assert len(vector_spills(text.splitlines())) <= 0.05 * products
