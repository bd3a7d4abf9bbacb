"""Attributes at the ends of int64 and beyond what an operator can do: right results, or errors that name the node."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.graph.ir import Node  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from cpuconv.graph.ops.base import Op  # noqa: E402
from support.graphs import one_node, run  # noqa: E402

RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((1, 8, 5, 6), (8, 8, 3, 3)))
FAR = (1 << 31, 1 << 60, 1 << 62, (1 << 63) - 1)


@pytest.mark.parametrize("step", FAR)
@pytest.mark.parametrize("steps", [lambda far: [1, far], lambda far: [far, 2], lambda far: [far, far]])
@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize(
    ("op", "weights", "attributes"),
    [
        ("Conv", W, {}),
        ("Conv", W[:, :1], {"group": 8}),
        ("MaxPool", None, {"kernel_shape": [3, 3]}),
        ("AveragePool", None, {"kernel_shape": [3, 3], "ceil_mode": 1}),
        ("LpPool", None, {"kernel_shape": [3, 3]}),
    ],
)
def test_windows_of_far_steps(op, weights, attributes, steps, pads, step):
    """A step beyond the input is as good as one to its end."""
    attributes, arrays = {"pads": [pads] * 4, **attributes}, [X] if weights is None else [X, weights]
    far, near = (
        one_node(op, arrays, 1, 19, fixed=[1], strides=steps(each), **attributes)[0]
        for each in (step, 5 + 6 + 2 * pads)
    )
    np.testing.assert_allclose(cpuconv.compile(far).run({"x0": X})["y0"], run(near, {"x0": X})[0], atol=1e-4)


@pytest.mark.parametrize("step", [*FAR, 1 << 64, 1 << 200])
def test_conv2d_of_far_steps(step):
    near = cpuconv.conv2d(X, W, stride=7, padding=1)
    np.testing.assert_array_equal(cpuconv.conv2d(X, W, stride=step, padding=1), near)


@pytest.mark.parametrize("size", [0, -1, -(1 << 63)])
@pytest.mark.parametrize("shape", [(1, 4, 2, 2), (1, 4), (0, 4, 2, 2)])
def test_response_normalisation_over_no_channels(size, shape):
    model, feed = one_node("LRN", [np.ones(shape, np.float32)], size=size)
    with pytest.raises(SourceError, match=f"LRN node 'y0' .*'size' must be at least 1, not {size}"):
        cpuconv.compile(model).run(feed)


@pytest.mark.parametrize("fixed", [(), (0, 1)])
def test_a_reference_that_gives_another_shape(fixed, monkeypatch):
    """As when a rule and a reference disagree: no array is read as one of another shape."""

    def narrow(node: Node, arrays: list) -> np.ndarray:
        return np.zeros((1, 3), arrays[0].dtype)

    monkeypatch.setitem(TABLE, "Mod", Op("Mod", TABLE["Mod"].rule, narrow, {"fmod": 0}))
    model, feed = one_node("Mod", [np.ones((2, 3), np.int32), np.ones((2, 3), np.int32)], fixed=fixed)
    with pytest.raises(
        SourceError, match=r"Mod node 'y0': an output must have the inferred shape int32\[2,3\], not \(1, 3\)"
    ):
        cpuconv.compile(model).run(feed)
    if not fixed:
        with pytest.raises(SourceError, match="Mod node 'y0'"):
            run(model, feed)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("LayerNormalization", [X[0, 0], np.ones(0, np.float32)], {"axis": 1}),
        ("LayerNormalization", [X[0, 0, :1], np.ones((4, 6), np.float32)], {"axis": 1}),
        ("GatherND", [np.zeros((0, 17, 4), np.float32), np.zeros((1, 5, 1), np.int64)], {"batch_dims": 1}),
        ("GatherND", [np.zeros((2, 17, 4), np.float32), np.zeros((1, 5, 1), np.int64)], {"batch_dims": 1}),
        ("MaxUnpool", [X, np.zeros(X.shape, np.int64), np.array([10, 10])], {"kernel_shape": [2, 2]}),
        ("Slice", [X, np.array([0, 1]), np.array([1])], {}),
        ("Tile", [X, np.array([1, 2])], {}),
        ("Pad", [X, np.array([1, 2])], {}),
        ("Resize", [X, None, np.array([1, 2], np.float32)], {}),
        ("Resize", [X, None, None, np.array([1, 2])], {}),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_operands_that_do_not_fit(op, arrays, attributes, known):
    fixed = [at for at in range(1, len(arrays)) if known]
    model, feed = one_node(op, arrays, fixed=fixed, **attributes)
    with pytest.raises(SourceError, match=f"{op} node 'y0'") as caught:
        cpuconv.compile(model).run(feed)
    assert not any(word in str(caught.value) for word in ("zip()", "broadcast together", "into shape"))
