"""Comparisons in other types than float32: data, the exact answer, what counts as right, and the engines' forms."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from bench import compare, race, shapes, typed
from bench.engine import Session
from bench.peers import CPUCONV, OWN_F32, make
from bench.peers.cpuconv_peer import CpuconvPeer, OwnFloat32Peer
from bench.results import Measurement
from bench.settings import Settings
from cpuconv.elements import from_bfloat16
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from support import saturation
from support.tuner.bench_fakes import LINE, PEER, FakeEngine, measurement, result_of, run_of

PROBLEMS = [
    ConvProblem(1, 16, 9, 9, 8, 3, 3, pads=(1, 1, 1, 1)),
    ConvProblem(2, 6, 7, 9, 6, 3, 2, stride=(2, 3), pads=(0, 1, 2, 1), groups=6),
    ConvProblem(1, 8, 11, 10, 4, 3, 3, dilation=(2, 3), pads=(3, 0, 1, 2), groups=2),
]
INT8, BF16 = typed.NAMES["int8"], typed.NAMES["bf16"]


def needs(module: str) -> pytest.MarkDecorator:
    """A peer that is not installed is not compared."""
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


# --- data and the answer -----------------------------------------------------------------------------------------


def test_names_of_types():
    assert typed.types_of("f32") == ALL_F32 and str(typed.types_of("int8")) == "u8:s8:u8"
    assert str(typed.types_of("bf16")) == "bf16:bf16:bf16" and typed.types_of("s8:s8:s32") == Types.parse("s8:s8:s32")


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("text", ["u8:s8:u8", "s8:s8:s8", "u8:s8:s32", "u8:s8:f32"])
def test_integers_pixel_by_pixel(problem, text):
    problem = replace(problem, types=Types.parse(text))
    given = typed.data(problem)
    answer = typed.answer(problem, given)
    scales = given.scales
    rng, (top, bottom, left, right) = np.random.default_rng(3), problem.pads
    padded = np.pad(given.x.astype(np.int64) - scales.x_zero, ((0, 0), (0, 0), (top, bottom), (left, right)))
    for n, k, row, column in zip(*(rng.integers(0, size, 20) for size in answer.shape), strict=True):
        rows = row * problem.stride[0] + problem.dilation[0] * np.arange(problem.r)[:, None]
        columns = column * problem.stride[1] + problem.dilation[1] * np.arange(problem.s)
        group = padded[n, k // problem.kg * problem.cg :][: problem.cg]
        total = int(given.bias[k]) + int((group[:, rows, columns] * given.w[k]).sum())
        if text.endswith("s32"):
            assert answer[n, k, row, column] == total
        elif text.endswith("f32"):
            assert answer[n, k, row, column] == pytest.approx(total * float(scales.x_scale * scales.w_scale[k]), 1e-6)
        else:
            factor = np.float32(np.float32(scales.x_scale * scales.w_scale[k]) / scales.y_scale)
            low, high = (0, 255) if text.endswith("u8") else (-128, 127)
            wanted = min(max(int(np.rint(np.float32(total) * factor)) + scales.y_zero, low), high)
            assert answer[n, k, row, column] == wanted


def test_outputs_fill_their_range_and_a_few_saturate():
    problem = replace(shapes.load(pattern="res3b_2b")[0].problem, types=INT8)
    answer = typed.answer(problem, typed.data(problem))
    ends = np.isin(answer, (0, 255)).mean()
    assert 0 < ends < 0.02 and answer.std() > 25


def test_bfloat16_operands_are_rounded_once():
    problem = replace(PROBLEMS[0], types=BF16)
    given = typed.data(problem)
    plain = typed.data(replace(problem, types=ALL_F32))
    assert given.x.dtype == np.uint16 and given.scales is None
    assert np.abs(from_bfloat16(given.x) - plain.x).max() <= 2.0**-8 * np.abs(plain.x).max()
    assert np.array_equal(given.bias, plain.bias)  # as bfloat16 holds it


def test_types_that_are_not_compared():
    with pytest.raises(ValueError, match="s16:s8:s32 are not compared"):
        typed.data(replace(PROBLEMS[0], types=Types.parse("s16:s8:s32")))


def test_error_counts_last_places_of_integers():
    problem = replace(PROBLEMS[0], types=INT8)
    answer = typed.answer(problem, typed.data(problem))
    right = answer.astype(np.uint8)
    wrong = right.copy()
    wrong[0, 0, 0, 0] ^= 2
    assert typed.error(problem, right, answer) == 0 and typed.error(problem, wrong, answer) == 2
    assert np.isinf(typed.error(problem, right[:, :1], answer))
    assert np.isinf(typed.error(problem, right.astype(np.float32), answer))


def test_limits():
    assert typed.limit(INT8, CPUCONV, True) == typed.limit(INT8, "onnxruntime", False) == 0
    assert typed.limit(INT8, "torch", False) == 1
    assert typed.limit(BF16, CPUCONV, True) < typed.limit(BF16, "torch", False) < 0.01
    assert typed.limit(Types.parse("u8:s8:f32"), CPUCONV, True) == 1e-4


# --- measuring ---------------------------------------------------------------------------------------------------


def test_a_peer_of_float32_alone_says_so():
    with pytest.raises(RuntimeError, match="Fake is compared in float32 only"):
        Session(make(PEER), 1).prepare(replace(PROBLEMS[0], types=INT8))


def test_forms_that_are_off_by_more_are_left_out():
    result = Measurement()
    engines = [FakeEngine(CPUCONV, {"auto": 1.0}, error=1.0), FakeEngine("torch", {"x86": 2.0}, error=1.0)]
    race.measure(result, LINE, engines, Settings(rounds=1, types=INT8), lambda: None)
    assert result.forms[CPUCONV] == [] and len(result.forms["torch"]) == 1
    assert result.notes == ["Cpuconv's auto is wrong by 1.0e+00"]


def test_an_engine_may_time_itself():
    session = Session(make(PEER), 1)
    session.prepare(PROBLEMS[0])
    session.forms["right"].sample = lambda seconds: [seconds, 2 * seconds]
    assert session.time("right", 0.5) == [0.5, 1.0]


def test_own_float32_is_no_peer():
    run = run_of(CPUCONV, OWN_F32, "torch", types=INT8)
    assert run.peers == ("torch",)
    assert run.groups == {"Own-Fp32": (OWN_F32,), "Torch": ("torch",)}
    result = result_of(**{CPUCONV: [[1.0]], OWN_F32: [[3.0]], "torch": [[2.0]]})
    assert result.ratio(run.peers).median == 2.0 and result.ratio((OWN_F32,)).median == 3.0


@pytest.mark.parametrize("text", ["u8:s8:u8", "u8:s8:f32", "u8:s8:s32", "bf16:bf16:bf16", "f16:f16:f16"])
def test_own_float32_gives_what_the_types_give(text):
    problem = replace(PROBLEMS[0], types=Types.parse(text))
    found = Session(OwnFloat32Peer(("NCHW",), "heuristic"), 1).prepare(problem)
    assert [form.error <= max(1.0 * problem.types.y.integer, 4e-3) for form in found] == [True]


@pytest.mark.parametrize("text", ["u8:s8:u8", "s8:s8:s8", "u8:s8:f32", "u8:s8:s32", "bf16:bf16:bf16", "f16:f16:f16"])
def test_ours_in_every_layout(text):
    problem = replace(PROBLEMS[0], types=Types.parse(text))
    found = Session(CpuconvPeer(("auto", "NHWC", "NCHW"), "heuristic"), 1).prepare(problem)
    assert [form.form for form in found] == ["auto", "NHWC", "NCHW"] and found[2].plain
    assert all(form.error <= typed.limit(problem.types, CPUCONV, True) for form in found)
    assert all(form.algorithm and form.detail for form in found)


# --- the command line --------------------------------------------------------------------------------------------


def test_option_of_types(capsys):
    assert compare.parser().parse_args(["--types", "bf16"]).types == BF16
    assert compare.parser().parse_args([]).types == ALL_F32
    with pytest.raises(SystemExit):
        compare.parser().parse_args(["--types", "int9"])
    assert "one of f32, bf16" in capsys.readouterr().err


def test_option_of_the_bits_of_weights(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(compare.Race, "measure_all", lambda self: asked.append(self.settings))
    for more in ([], ["--weight-bits", "7"]):
        assert compare.main(["--types", "int8", "--draw", "1", *more]) == 1
    assert [(each.w_bits, "weights of" in each.title) for each in asked] == [(8, False), (7, True)]
    for wrong in ("1", "9", "seven"):
        with pytest.raises(SystemExit):
            compare.parser().parse_args(["--weight-bits", wrong])
        assert "argument --weight-bits: invalid" in capsys.readouterr().err


def test_engines_get_weights_of_the_bits_asked_for():
    """The same numbers without their lowest bits, in whichever process they are made."""
    engine = FakeEngine(CPUCONV, {"auto": 1.0})
    race.measure(Measurement(), replace(LINE, problem=replace(LINE.problem, types=INT8)), [engine],
                 Settings(rounds=1, types=INT8, w_bits=7), lambda: None)  # fmt: skip
    assert engine.w_bits == 7
    whole, narrow = (typed.data(replace(PROBLEMS[0], types=INT8), bits).w for bits in (8, 7))
    np.testing.assert_array_equal(narrow, whole >> 1)
    assert whole.min() < -64 and narrow.min() >= -64 and narrow.max() <= 63


def test_lines_take_the_types_asked_for():
    assert {line.problem.types for line in shapes.load(pattern="vgg16", types=BF16)} == {BF16}
    drawn = shapes.at_random(5, seed=1, types=INT8)
    assert len(drawn) == 5 and drawn == shapes.at_random(5, seed=1, types=INT8) != shapes.at_random(
        5, seed=2, types=INT8
    )
    assert all(line.problem.activation is None and line.problem.types == INT8 for line in drawn)


def test_comparison_in_int8_asks_its_peers(monkeypatch):
    asked = []
    monkeypatch.setattr(compare.Race, "measure_all", lambda self: asked.append(self))
    assert compare.main(["--types", "int8", "--draw", "3", "--seed", "2"]) == 1
    assert asked[0].settings.peers == (OWN_F32, "torch", "onnxruntime", "openvino")
    assert [line.problem.types for line in asked[0].lines] == [INT8] * 3


def test_targets_of_types():
    from bench.targets import check

    found = {v.name: v for v in check(
        [result_of(**{CPUCONV: [[1.0]], OWN_F32: [[3.0]], "torch": [[1.2]]})],
        run_of(CPUCONV, OWN_F32, "torch", types=INT8),
    )}  # fmt: skip
    assert not found["geometric mean, best peer"].met and found["geometric mean, best peer"].reached == "1.20"
    assert found["geometric mean, own fp32"].met and found["geometric mean, own fp32"].reached == "3.00"


def test_shares_of_the_roof_count_where_solvers_are_direct():
    from autotune.machine.roofline import FMA
    from bench.results import LineResult
    from bench.targets import Share, check, targets_of
    from support.tuner.bench_fakes import ROOFS, SMALL

    seconds = SMALL.flops / ROOFS.fma_gflops * 1e-9
    direct = LineResult(LINE, [measurement(ROOFS, "direct(v=1,rows=1,cols=6,block=6)", cpuconv=[[2 * seconds]])])
    assert direct.shares()[FMA] == pytest.approx(0.5)
    target = next(target for target in targets_of(BF16) if isinstance(target, Share))
    verdict = next(v for v in check([direct], run_of(CPUCONV, types=BF16)) if v.name == target.name)
    assert not verdict.met and verdict.reached == "50% of 1 lines"


# --- the engines -------------------------------------------------------------------------------------------------


@needs("onnxruntime")
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize(("text", "bits"), [("u8:s8:u8", 7), ("u8:s8:u8", 8), ("s8:s8:s8", 8)])
def test_onnxruntime_gives_every_bit(problem, text, bits):
    if text.startswith("u8"):
        saturation.need(bits)
    found = Session(make("onnxruntime"), 1).prepare(replace(problem, types=Types.parse(text)), bits)
    assert [(form.form, form.plain, form.error) for form in found] == [("nchw", True, 0.0), ("nhwc", False, 0.0)]


@needs("onnxruntime")
@pytest.mark.parametrize("text", ["bf16", "u8:s8:f32", "u8:s8:s32"])
def test_onnxruntime_has_no_form_of_other_types(text):
    assert Session(make("onnxruntime"), 1).prepare(replace(PROBLEMS[0], types=Types.parse(text))) == []


@needs("torch")
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_torch(problem):
    session = Session(make("torch"), 1)
    for types in (BF16, typed.NAMES["f16"]):
        found = session.prepare(replace(problem, types=types))
        assert found and all(form.error <= typed.limit(types, "torch", False) for form in found)
    assert len(session.prepare(replace(problem, types=INT8))) >= 1  # FBGEMM's depthwise sums saturate


@needs("openvino")
@pytest.mark.parametrize("types", [BF16, INT8], ids=str)
def test_openvino_tells_the_time_of_the_layer_alone(types):
    session = Session(make("openvino"), 1)
    found = session.prepare(replace(PROBLEMS[0], types=types))
    assert [form.form for form in found] == ["layer", "nhwc" if types == BF16 else "nchw"]
    assert all(form.error <= typed.limit(types, "openvino", False) for form in found)
    assert min(session.time("layer", 0.01)) > 0
