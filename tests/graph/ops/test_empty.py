"""Every operator of tensors of which a size is 0: what ONNX's evaluator gives, or an error of ours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("onnx")
import onnx  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.errors import CpuconvError  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from support.graph.cases import CASES, drawn  # noqa: E402
from support.graphs import MISJUDGED, Case, close, one_node  # noqa: E402

OPERATORS = sorted(op for op in CASES if onnx.defs.has(op))
# What other libraries say of sizes: ours are to be understood.
FOREIGN_WORDS = ("zip()", "division", "zero-size", "broadcast together", "empty sequence", "broadcast input", "reshape")
# Operators that refuse what the evaluator takes, or takes in a way that ONNX does not say.
STRICTER = {
    "AffineGrid": "a matrix for each image of the sizes",
    "BatchNormalization": "a number a channel",
    "Conv": "a kernel of at least one element",
    "ConvInteger": "a kernel of at least one element",
    "DeformConv": "a kernel of the stated size",
    "Einsum": "sizes of one letter are equal",
    "InstanceNormalization": "a number a channel",
    "LayerNormalization": "a scale that broadcasts to the input",
    "PRelu": "a slope that broadcasts to the input",
    "RoiAlign": "an image for each region",
    "ScatterElements": "an update for each index",
    "ScatterND": "an update for each index",
    "Split": "parts that make up the axis",
    "Tile": "a number for each axis",
}


def emptied(case: Case) -> Iterator[Case]:
    """The case with each size in turn 0: in one operand, and in all where they have it; each of other shapes."""
    seen = set()
    for at, array in enumerate(case.arrays):
        for axis, size in enumerate([] if array is None else array.shape):
            one = [each if other != at else cut(each, {axis}) for other, each in enumerate(case.arrays)]
            every = [each if each is None else cut(each, same(each, size)) for each in case.arrays]
            for arrays in (one, every):
                shapes = tuple(None if each is None else each.shape for each in arrays)
                if shapes not in seen:
                    seen.add(shapes)
                    yield case._replace(arrays=arrays)


def same(array: np.ndarray, size: int) -> set[int]:
    return {axis for axis, own in enumerate(array.shape) if own == size}


def cut(array: np.ndarray, axes: set[int]) -> np.ndarray:
    return array[tuple(slice(0, 0) if axis in axes else slice(None) for axis in range(array.ndim))]


def wanted(op: str, model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """What ONNX's evaluator gives, if that is what ONNX says; ONNX Runtime would end the process."""
    if op in MISJUDGED or op in STRICTER:
        return None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return ReferenceEvaluator(model).run(None, feed)
    except Exception:  # whatever the evaluator of any operator raises
        return None


@pytest.mark.parametrize("op", OPERATORS)
def test_sizes_of_0(op):
    tried, cases = 0, drawn(CASES[op], 3)
    for whole in cases:
        for case in emptied(whole):
            model, feed = one_node(op, case.arrays, case.outputs, fixed=TABLE[op].parameters, **case.attributes)
            tried += 1
            sizes = [None if array is None else array.shape for array in case.arrays]
            right = wanted(op, model, feed)
            try:
                got = list(cpuconv.compile(model, threads=1).run(feed).values())
            except CpuconvError as error:
                assert not any(word in str(error) for word in FOREIGN_WORDS), sizes
                assert right is None, (sizes, str(error))
                continue
            for own, other in zip(got, right or (), strict=right is not None):
                close(np.asarray(own), np.asarray(other))
    assert tried or all(not array.ndim for case in cases for array in case.arrays if array is not None)


@pytest.mark.parametrize(
    ("op", "dtype", "value"),
    [
        ("ReduceMax", np.float32, -np.inf),
        ("ReduceMin", np.float32, np.inf),
        ("ReduceMax", np.int32, np.iinfo(np.int32).min),
        ("ReduceMin", np.uint8, 255),
        ("ReduceSum", np.float32, 0),
        ("ReduceProd", np.float32, 1),
        ("ReduceLogSumExp", np.float32, -np.inf),
    ],
)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_of_planes_without_pixels(op, dtype, value, keepdims):
    x, axes = np.zeros((1, 3, 0, 4), dtype), np.array([2, 3])
    model, feed = one_node(op, [x, axes], fixed=[1], keepdims=keepdims)
    y = cpuconv.compile(model).run(feed)["y0"]
    np.testing.assert_array_equal(y, np.full((1, 3, 1, 1) if keepdims else (1, 3), value, dtype))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "half_pixel_symmetric", "align_corners", "tf_crop_and_resize"])
@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_resize_of_an_empty_batch(mode, coordinates, policy):
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, "axes": [0, 2, 3]}
    x, region = np.zeros((0, 2, 4, 4), np.float32), np.array([0, 0, 0, 1, 1, 1], np.float32)
    for by in (
        [region, None, np.array([0, 8, 8])],
        [region, np.array([1, 2, 2], np.float32)],
        [region, np.array([1, 0, 2], np.float32)],
    ):
        given = attributes | ({"keep_aspect_ratio_policy": policy} if len(by) > 2 else {})
        model, feed = one_node("Resize", [x, *by], fixed=[1, 2, 3], **given)
        shape = (0, 2, 0 if len(by) == 2 and by[1][1] == 0 else 8, 8)
        assert cpuconv.compile(model).run(feed)["y0"].shape == shape
    for size in (0, 3):  # planes without pixels
        model, feed = one_node(
            "Resize", [x.reshape(2, 2, 0, 4), region, None, np.array([2, size, 4])], fixed=[1, 2, 3], **attributes
        )
        if size:
            with pytest.raises(cpuconv.SourceError, match="Resize node 'y0' .* axis of size 0"):
                cpuconv.compile(model).run(feed)
        else:
            assert cpuconv.compile(model).run(feed)["y0"].shape == (2, 2, 0, 4)
