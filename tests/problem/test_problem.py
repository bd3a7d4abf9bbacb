"""ConvProblem: validation, derived sizes, and the problem string."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.problem import activation
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from support.geometry import of, problems, upto

BASE = {"n": 1, "c": 8, "h": 10, "w": 12, "k": 6, "r": 3, "s": 3}
ACTIVATIONS = (None, "relu", "relu6", "gelu", ("clip", -1, 2.5), ("clip", float("-inf"), 0), ("leaky_relu", 0.01))


def problem(**changes) -> ConvProblem:
    return ConvProblem(**{**BASE, **changes})


ANY = problems(
    n=upto(3, 0), groups=upto(3), cg=upto(4), kg=upto(4), sh=upto(4), sw=upto(4), dh=upto(4), dw=upto(4),
    pad=upto(5, 0), activation=of(*ACTIVATIONS), threads=upto(4),
)  # fmt: skip


def test_sizes():
    p = ConvProblem(2, 64, 56, 56, 128, 3, 3, (2, 2), (1, 1, 1, 1), groups=2)
    assert (p.cg, p.kg, p.oh, p.ow) == (32, 64, 28, 28)
    assert (p.in_shape, p.out_shape, p.weight_shape) == ((2, 64, 56, 56), (2, 128, 28, 28), (128, 32, 3, 3))
    assert p.flops == 2 * 2 * 128 * 28 * 28 * 32 * 9
    assert (p.in_bytes, p.weight_bytes, p.out_bytes) == (4 * 2 * 64 * 56 * 56, 4 * 128 * 32 * 9, 4 * 2 * 128 * 28 * 28)


@given(ANY)
def test_key_reads_back(p):
    again = ConvProblem.parse(p.key)
    assert again == p and again.key == p.key and hash(again) == hash(p)


@given(ANY)
def test_far_padding_is_what_the_last_output_needs(p):
    for size, taps, gap, step, outputs, near, far in zip(
        (p.h, p.w), (p.r, p.s), p.dilation, p.stride, (p.oh, p.ow), p.pads[::2], p.pads[1::2], strict=True
    ):
        end = (outputs - 1) * step + (taps - 1) * gap + 1
        assert far == max(0, end - size - near)
        assert size + near + far - end < step


def test_padding_that_no_output_reads_is_no_other_problem():
    assert problem(stride=(2, 2), pads=(0, 2, 1, 1)) == problem(stride=(2, 2), pads=(0, 1, 1, 0))


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(ConvProblem)])
def test_every_field_changes_the_key(field):
    changed = {
        "stride": (1, 2), "pads": (0, 0, 1, 0), "dilation": (2, 1), "groups": 2, "in_layout": "NHWC",
        "out_layout": "NHWC", "activation": "relu", "residual": True, "types": Types.parse("u8:s8:u8"),
    }.get(field, BASE.get(field, 1) + 1)  # fmt: skip
    assert problem(**{field: changed}).key != problem().key


def test_parse_fills_in_twins_and_defaults():
    p = ConvProblem.parse('ic64ih56oc128kh3sh2ph1dh1n"net:layer"')
    assert p == ConvProblem(1, 64, 56, 56, 128, 3, 3, (2, 2), (1, 1, 1, 1), (2, 2))
    p = ConvProblem.parse("g2_mb3_ic4_ih7iw9_oc6_oh7ow5_kh1kw7_ph0pw3_sh1sw2", threads=2, in_layout="NCHW44")
    assert p == ConvProblem(3, 4, 7, 9, 6, 1, 7, (1, 2), (0, 0, 3, 3), groups=2, in_layout="NCHW4c", threads=2)


def test_parse_takes_far_padding_from_the_output():
    assert ConvProblem.parse("ic3ih224oc64oh112kh7sh2ph3").pads == (3, 2, 3, 2)
    assert ConvProblem.parse("ic3ih224oc64kh7sh2ph3").pads == (3, 2, 3, 2)
    assert ConvProblem.parse("ic3ih10oc4oh10kh2").pads == (0, 1, 0, 1)
    unused_rows = ConvProblem.parse("ic3ih10oc4oh5kh1sh2")
    assert unused_rows.pads == (0, 0, 0, 0) and unused_rows.oh == 5


@pytest.mark.parametrize(
    "text",
    [
        "", "resnet50.onnx", "ic3ih8oc4", "ic3ih8oc4kh3zz1", "ic3ic3ih8oc4kh3", "ic3ih8oc4kh3 in=NCHW in=NCHW",
        "ic3ih8oc4kh3 layout=NCHW", "ic3ih8oc4kh3 act=swoosh", "ic3ih8oc4kh3 act=clip:a:b", "ic3ih8oc4kh3 res=yes",
        "ic3ih8oc4kh3 in=CHWN", "ic3ih8oc4oh2kh3", "ic3ih8oc4kh9", "ic3ih8oc4kh3sh0", "ic3ih8oc4oh6kh3sh0",
        "g2ic3ih8oc4kh3", "ic0ih8oc4kh3", "ic3id4ih8oc4kh3",
    ],
)  # fmt: skip
def test_parse_refuses(text):
    with pytest.raises(ArgumentError, match=r"^Argument '\w+' must be .*, not "):
        ConvProblem.parse(text)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"c": 0}, "'c' must be at least 1, not 0"),
        ({"n": -1}, "'n' must be at least 0, not -1"),
        ({"stride": (0, 1)}, r"'stride' must be at least 1, not \(0, 1\)"),
        ({"stride": (1, 1, 1)}, "'stride' must be 2 integers"),
        ({"dilation": (1, 0)}, "'dilation' must be at least 1"),
        ({"pads": (0, 0, -1, 0)}, "'pads' must be at least 0"),
        ({"groups": 4}, "'groups' must be a divisor of the 8 input channels and of the 6 output channels, not 4"),
        ({"r": 11}, "'w' must be weights whose kernel is no larger than the padded input 10x12, not a kernel of 11x3"),
        ({"dilation": (5, 5)}, r"padded input 10x12, not a kernel of 3x3 \(11x11 with its dilation\)"),
        ({"in_layout": "CHWN"}, "'in_layout' must be one of NCHW, NHWC, .*, not 'CHWN'"),
        ({"out_layout": "auto"}, "'out_layout' must be one of NCHW, NHWC, .*, not 'auto'"),
        ({"activation": "swoosh"}, "'activation' must be one of None, 'relu', .*, not 'swoosh'"),
        ({"threads": 0}, "'threads' must be at least 1"),
    ],
)
def test_values_refused(changes, message):
    with pytest.raises(ArgumentError, match=message):
        problem(**changes)


@pytest.mark.parametrize("changes", [{"c": 8.0}, {"n": True}, {"stride": 1}, {"pads": (0, 0, 0, "0")}])
def test_types_refused(changes):
    with pytest.raises(ArgumentTypeError, match="must be .*integer"):
        problem(**changes)


def test_numpy_integers_and_aliases_are_made_plain():
    p = problem(n=np.int64(1), stride=[np.int32(1), 1], in_layout="NCHW44", activation="relu")
    assert p == problem(in_layout="NCHW4c", activation=("relu",)) and type(p.n) is int and type(p.stride[0]) is int


def test_replace_validates_and_frozen_holds():
    assert dataclasses.replace(problem(), out_layout="NHWC").out_layout == "NHWC"
    with pytest.raises(ArgumentError):
        dataclasses.replace(problem(), groups=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem().n = 2


# --- activations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", activation.names())
def test_activation_text_reads_back(name):
    normal = activation.normalize((name, *range(len(activation.scalars_of(name)))))
    assert activation.normalize(normal) == normal == activation.from_text(activation.to_text(normal))


@pytest.mark.parametrize(
    "value, kind",
    [
        ("swoosh", ArgumentError), ("clip", ArgumentError), (("clip", 1), ArgumentError), (("relu", 1), ArgumentError),
        (("clip", 2, 1), ArgumentError), (("clip", float("nan"), 1), ArgumentError), (3, ArgumentTypeError),
        ((), ArgumentTypeError), (("clip", "0", "1"), ArgumentTypeError), (("leaky_relu", True), ArgumentTypeError),
    ],
)  # fmt: skip
def test_activation_refused(value, kind):
    with pytest.raises(kind, match="^Argument 'activation' must be "):
        activation.normalize(value)


def test_activation_values():
    x = np.array([-8.0, -1.0, 0.0, 0.5, 8.0])
    expected = {
        ("relu",): [0, 0, 0, 0.5, 8],
        ("relu6",): [0, 0, 0, 0.5, 6],
        ("clip", -0.5, 0.25): [-0.5, -0.5, 0, 0.25, 0.25],
        ("leaky_relu", 0.1): [-0.8, -0.1, 0, 0.5, 8],
        ("sigmoid",): [3.3535013046647811e-4, 0.26894142136999512, 0.5, 0.62245933120185457, 0.99966464986953352],
        ("tanh",): [-0.99999977492967, -0.76159415595576, 0, 0.46211715726001, 0.99999977492967],
        ("silu",): [-0.0026828010437318, -0.26894142136999512, 0, 0.31122966560092729, 7.9973171989562682],
        ("hardsigmoid",): [0, 1 / 3, 0.5, 7 / 12, 1],
        ("hardswish",): [0, -1 / 3, 0, 3.5 / 12, 8],
        ("gelu",): [-4.9765e-15, -0.15865525393145705, 0, 0.34573123063700656, 8],
        ("gelu_tanh",): [0, -0.1588080093917233, 0, 0.34571400982514394, 8],
        ("elu", 0.5): [-0.49983226868604874, -0.31606027941427883, 0, 0.5, 8],
        ("selu",): [-1.7575095697161924, -1.1113307412864784, 0, 0.5253505110740662, 8.405608177185059],
        ("swish", 2.0): [-9.0028129644076e-07, -0.1192029220221176, 0, 0.3655292893150024, 7.999999099718703],
        ("softplus",): [
            3.354063728957688e-4,
            0.313261687518223,
            0.6931471805599453,
            0.97407698418011,
            8.000335406372896,
        ],
        ("mish",): [-0.002683250882546538, -0.3034014613741089, 0, 0.3752452113048951, 7.999998200644843],
    }
    assert {entry[0] for entry in expected} == set(activation.names())
    for entry, values in expected.items():
        np.testing.assert_allclose(activation.apply(x, entry), values, rtol=1e-9, atol=1e-13, err_msg=str(entry))
    assert activation.apply(x, None) is x


@pytest.mark.parametrize("name", activation.names())
def test_activation_lets_nan_through_and_bears_infinities(name):
    entry = activation.normalize((name, *{0: (), 1: (1.0,), 2: (0.0, 1.0)}[len(activation.scalars_of(name))]))
    assert np.isnan(activation.apply(np.array([np.nan]), entry)).all()
    assert activation.apply(np.array([np.inf]), entry) >= 1.0
