"""Models with control flow, run here and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

import cpuconv
from support.graphs import parse

Feed = Mapping[str, Any]


def arrays(feed: Feed) -> dict[str, np.ndarray]:
    """A feed as arrays."""
    return {name: np.asarray(value) for name, value in feed.items()}


def by_runtime(model: onnx.ModelProto, feed: Feed) -> dict[str, np.ndarray]:
    """The outputs by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, arrays(feed)), strict=True))


def same(got: Mapping[str, np.ndarray], expected: Mapping[str, Any]) -> None:
    """See that results are those expected, of the same shapes and types."""
    for name, right in expected.items():
        right = np.asarray(right)
        assert got[name].shape == right.shape, (name, got[name].shape, right.shape)
        if right.dtype.kind in "iufb":
            assert got[name].dtype == right.dtype, (name, got[name].dtype, right.dtype)
        np.testing.assert_allclose(
            got[name].astype(np.float64), right.astype(np.float64), rtol=1e-5, atol=1e-6, err_msg=name
        )


def agrees(text: str, *feeds: Feed, opset: int = 17, threads: int = 1) -> cpuconv.Model:
    """A model of which every feed gives what ONNX Runtime gives, in one and the other order."""
    model = parse(text, opset)
    made = cpuconv.compile(model, strategy="heuristic", threads=threads)
    expected = [by_runtime(model, feed) for feed in feeds]
    for feed, right in [*zip(feeds, expected, strict=True), *reversed(list(zip(feeds, expected, strict=True)))]:
        same(made.run(arrays(feed)), right)
    return made
