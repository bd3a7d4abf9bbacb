"""Feeds in a form that other libraries take, of other dtypes, or of channels last: the error names the right form."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError
from support.graphs import parse

MODEL = parse("g (float[N,3,8,H] x) => (float[N,3,8,H] y) { y = Relu(x) }")
X = np.random.default_rng(0).standard_normal((2, 3, 8, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> cpuconv.Model:
    return cpuconv.compile(MODEL, threads=1, strategy="heuristic")


@pytest.mark.parametrize("feed", [None, ["y"]])
def test_a_call_as_of_onnx_runtime(model: cpuconv.Model, feed: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"as in run\(\{'x': …\}\), not .*InferenceSession does so"):
        model.run(feed, {"x": X})


def test_a_dict_given_to_the_model(model: cpuconv.Model) -> None:
    with pytest.raises(ArgumentTypeError, match=r"'x' must be an array: a dict of arrays goes to run\(\), not a dict"):
        model({"x": X})


def test_channels_last_are_recognised(model: cpuconv.Model) -> None:
    turned = np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    with pytest.raises(ArgumentError, match=r"\['x'\].*looks like NHWC: give x.transpose\(0, 3, 1, 2\)"):
        model(turned)
    with pytest.raises(ArgumentError) as caught:
        model(X[:, :2])
    assert "NHWC" not in str(caught.value)
    w = np.zeros((4, 3, 3, 3), np.float32)
    with pytest.raises(ArgumentError, match="'w' must be .* not .*: 'x' looks like NHWC, which in_layout='NHWC' says"):
        cpuconv.conv2d(turned, w)
    with pytest.raises(ArgumentError, match="looks like NHWC"):
        cpuconv.plan(X.shape, w)(turned)
    with pytest.raises(ArgumentError) as caught:
        cpuconv.conv2d(X, np.zeros((4, 5, 3, 3), np.float32))
    assert "NHWC" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.int64, np.float16, ml_dtypes.bfloat16, np.bool_])
def test_other_dtypes_are_converted_where_that_is_asked_for(model: cpuconv.Model, dtype: type) -> None:
    given = (10 * X).astype(dtype)
    with pytest.raises(ArgumentTypeError, match=r"float32: cast it .*, or call Model\.run\(…, convert=True\), not"):
        model.run({"x": given})
    found = model.run({"x": given}, convert=True)["y"]
    np.testing.assert_array_equal(found, np.maximum(given.astype(np.float32), 0))


def test_lists_and_right_arrays_are_converted_and_words_are_not(model: cpuconv.Model) -> None:
    np.testing.assert_array_equal(model.run({"x": X}, convert=True)["y"], np.maximum(X, 0))
    np.testing.assert_array_equal(model.run({"x": X.tolist()}, convert=True)["y"], np.maximum(X, 0))
    with pytest.raises(ArgumentTypeError, match=r"feed\['x'\]"):
        model.run({"x": np.full(X.shape, "1")}, convert=True)
    with pytest.raises(ArgumentError, match="without 'x'"):
        model.run({}, convert=True)


def test_integers_are_asked_for_by_name() -> None:
    integers = cpuconv.compile(parse("g (int64[2] x) => (int64[2] y) { y = Identity(x) }"), threads=1)
    with pytest.raises(ArgumentTypeError, match=r"int64 \(Model\.run\(…, convert=True\) converts\), not int32"):
        integers.run({"x": np.int32([1, 2])})
    assert integers.run({"x": np.int32([1, 2])}, convert=True)["y"].tolist() == [1, 2]


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_says_save_and_load(model: cpuconv.Model, take) -> None:
    with pytest.raises(TypeError, match=r"model\.save\(path\) and cpuconv\.load\(path\)"):
        take(model)
