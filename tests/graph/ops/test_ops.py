"""Every operator of the graph's table against ONNX's own evaluator, shape inference and schema."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cpuconv.graph.ops import TABLE, names_of  # noqa: E402
from cpuconv.graph.ops.base import REQUIRED  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from support.graph.cases import CASES  # noqa: E402
from support.graphs import check, close, made, one_node, parse, runtime_session  # noqa: E402

ONNX = [op for op in TABLE if onnx.defs.has(op)]
ALONE = {
    *names_of(lambda op: op.draws),
    "MaxRoiPool",
}  # operators that ONNX's evaluator has not, or that draw numbers of their own
OURS = {"activation"}  # attributes that rewrites put there


def test_every_operator_has_cases():
    assert CASES.keys() == TABLE.keys() - ALONE


@pytest.mark.parametrize("op", [op for op in ONNX if op not in ALONE])
@settings(max_examples=20)
@given(data=st.data())
def test_reference(op, data):
    check(op, data.draw(CASES[op]))


@pytest.mark.parametrize("op", ONNX)
def test_attributes_are_those_of_the_schema(op):
    def text(value):
        return value.decode() if isinstance(value, bytes) else value

    stated = {}
    for name, attribute in onnx.defs.get_schema(op).attributes.items():
        default = attribute.default_value
        value = onnx.helper.get_attribute_value(default) if default.type else REQUIRED if attribute.required else None
        stated[name] = [text(item) for item in value] if isinstance(value, list) else text(value)
    ours = {
        name: np.float32(value) if isinstance(value, float) else value for name, value in TABLE[op].attributes.items()
    }
    assert {name: value for name, value in ours.items() if name not in OURS} == stated


@pytest.mark.parametrize("op", ONNX)
def test_operands_are_of_one_type_where_the_schema_says_so(op):
    inputs = onnx.defs.get_schema(op).inputs
    types = {each.type_str for at, each in enumerate(inputs) if at not in TABLE[op].parameters}
    looser = {"Clip", "Pad"}  # older opsets state numbers in float32
    assert TABLE[op].mixed == (len(types) > 1 or op in looser)


@pytest.mark.parametrize(
    ("mode", "rounding"),
    [  # what exporters write
        ("asymmetric", "floor"),
        ("asymmetric", "ceil"),
        ("half_pixel", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
        ("pytorch_half_pixel", "round_prefer_floor"),
        ("align_corners", "round_prefer_ceil"),
    ],
)
def test_places_are_rounded_as_in_onnx_runtime(mode, rounding):
    runtime = pytest.importorskip("onnxruntime")
    attributes = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
    node = TABLE["Resize"].node(["x", "", "", "sizes"], ["y"], **attributes)
    text = " ".join(f'{name} = "{value}",' for name, value in attributes.items())[:-1]
    model = parse(f"g (float[N] x, int64[1] sizes) => (float[M] y) {{ y = Resize <{text}> (x, , , sizes) }}", 18)
    session = runtime_session(runtime, model)
    for size in range(2, 50, 5):
        x = np.arange(size, dtype=np.float32)
        for count in range(2, 64, 7):
            sizes = np.array([count])
            (got,) = TABLE["Resize"].evaluate(node, [x, None, None, sizes], [x.dtype])
            np.testing.assert_array_equal(got, session.run(None, {"x": x, "sizes": sizes})[0])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_modes_of_grid_sample_under_their_old_names(mode):
    runtime, rng = pytest.importorskip("onnxruntime"), np.random.default_rng(0)
    arrays = [rng.normal(size=(1, 2, 5, 5)), rng.uniform(-1.2, 1.2, (1, 3, 3, 2))]
    model, feed = one_node("GridSample", [array.astype(np.float32) for array in arrays], 1, 16, mode=mode)
    (got,) = interpret(made(model, feed, strict=True), feed).values()
    close(got, runtime_session(runtime, model).run(None, feed)[0])
