"""Refused arguments: the message names the argument, what it must be, and what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError
from support import oracle
from support.example import EXPECTED, W, X, close, conv

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": X[0]}, ArgumentError, r"'x' must be of rank 4 for NCHW, not of rank 3, \(20, 8, 12\)"),
    ({"x": X, "in_layout": "NCHW8c"}, ArgumentError, "'x' must be of rank 5 for NCHW8c, not of rank 4"),
    ({"x": X.astype(np.float64)}, ArgumentTypeError, r"'x' must be of dtype float32: cast it with .*, not float64"),
    ({"x": X.astype(">f4")}, ArgumentTypeError, "'x' must be float32 in native byte order"),
    ({"x": X.tolist()}, ArgumentTypeError, "'x' must be a NumPy array .*, not a list"),
    ({"x": None}, ArgumentTypeError, "'x' must be .*, not None"),
    ({"x": X[:, :19]}, ArgumentError, "'w' must be of shape .K, 19, R, S., for an input of 19 channels"),
    ({"x": X[..., :0]}, ArgumentError, "'x' must be of a shape .* without empty axes"),
    ({"w": W[0]}, ArgumentError, r"'w' must be of rank 4, .*, not of rank 3"),
    ({"w": W.astype(np.float16)}, ArgumentTypeError, "'w' must be of dtype float32, as 'x' is of float32, not float16"),
    ({"w": W[:0]}, ArgumentError, "'w' must be of a shape .* without empty axes"),
    ({"w": oracle.normal((4, 20, 11, 3))}, ArgumentError, "'w' must be weights whose kernel is no larger .* 10x14"),
    ({"dilation": 7}, ArgumentError, "'w' must be weights .*, not a kernel of 3x3 .15x15 with its dilation."),
    ({"bias": np.ones(23, np.float32)}, ArgumentError, r"'bias' must be of shape \(24,\), not \(23,\)"),
    ({"bias": np.ones((24, 1), np.float32)}, ArgumentError, r"'bias' must be of shape \(24,\), not \(24, 1\)"),
    ({"bias": np.ones(24)}, ArgumentTypeError, "'bias' must be of dtype float32: cast it .*, not float64"),
    ({"stride": 0}, ArgumentError, "'stride' must be .*1.*, not 0"),
    ({"stride": (1, -2)}, ArgumentError, "'stride' must be .*, not .*-2"),
    ({"stride": 1.5}, ArgumentTypeError, "'stride' must be an integer or a pair of integers, not 1.5"),
    ({"dilation": 0}, ArgumentError, "'dilation' must be"),
    ({"padding": -1}, ArgumentError, "'padding' must be .*, not -1"),
    ({"padding": "full"}, ArgumentError, "'padding' must be .*'same_lower', not 'full'"),
    ({"padding": "same", "stride": 2}, ArgumentError, "'padding' must be 'same_upper' or 'same_lower'"),
    ({"groups": 3}, ArgumentError, "'groups' must be a divisor of the 20 input channels .*, not 3"),
    ({"groups": 2}, ArgumentError, "'w' must be of shape .K, 10, R, S., .* and groups=2, not"),
    ({"groups": 0}, ArgumentError, "'groups' must be at least 1, not 0"),
    ({"groups": "all"}, ArgumentTypeError, "'groups' must be .*, not 'all'"),
    ({"activation": "swoosh"}, ArgumentError, "'activation' must be one of None, 'relu', .*, not 'swoosh'"),
    ({"activation": ("clip", 1)}, ArgumentError, "'activation' must be .'clip', lo, hi.,"),
    ({"activation": 7}, ArgumentTypeError, "'activation' must be"),
    ({"residual": np.float32(EXPECTED[..., :5])}, ArgumentError, r"'residual' must be of shape \(2, 24, 8, 12\)"),
    ({"residual": EXPECTED}, ArgumentTypeError, "'residual' must be of dtype float32"),
    ({"in_layout": "NCWH"}, ArgumentError, "'in_layout' must be one of NCHW, .*, not 'NCWH'"),
    ({"in_layout": "auto"}, ArgumentError, "'in_layout' must be the layout that 'x' is in"),
    ({"out_layout": "CHW"}, ArgumentError, "'out_layout' must be one of NCHW, .*, not 'CHW'"),
    ({"out_layout": None}, ArgumentError, "'out_layout' must be one of"),
    ({"threads": 0}, ArgumentError, "'threads' must be 1 or more, not 0"),
    ({"threads": 1.0}, ArgumentTypeError, "'threads' must be an integer, 'auto' or None, not 1.0"),
    ({"strategy": "fastest"}, ArgumentError, "'strategy' must be one of heuristic, cached, profile, not 'fastest'"),
    ({"accuracy": "high"}, ArgumentError, "'accuracy' must be one of exact, standard, fast, not 'high'"),
    ({"accuracy": None}, ArgumentError, "'accuracy' must be one of exact, standard, fast, not None"),
    ({"workspace_limit": -1}, ArgumentError, "'workspace_limit' must be None or a number of bytes, 0 or more, not -1"),
    ({"workspace_limit": "1M"}, ArgumentError, "'workspace_limit' must be None or a number of bytes"),
]


@pytest.mark.parametrize(
    "changed, kind, message", REFUSED, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_refused(changed, kind, message):
    with pytest.raises(kind, match=f"^Argument {message}"):
        conv(**changed)
    assert issubclass(kind, cpuconv.CpuconvError)
    assert issubclass(kind, TypeError if kind is ArgumentTypeError else ValueError)


OF_PLANS = ("stride", "padding", "dilation", "groups", "activation", "threads", "strategy", "accuracy")


@pytest.mark.parametrize(
    "changed, kind, message",
    [each for each in REFUSED if set(each[0]) <= set(OF_PLANS)],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_refused_by_plan_and_explain(changed, kind, message):
    options = {"padding": 1, **changed}
    with pytest.raises(kind, match=f"^Argument {message}"):
        cpuconv.plan(X.shape, W, **options)
    with pytest.raises(kind, match=f"^Argument {message}"):
        cpuconv.explain(X.shape, W.shape, **options)


@pytest.mark.parametrize(
    "shape, kind, message",
    [
        ((20, 8, 12), ArgumentError, r"of rank 4, \(N, C, H, W\), not of rank 3, \(20, 8, 12\)"),
        ((2, 20, 8, 0), ArgumentError, r"of a shape .*without empty axes, not \(2, 20, 8, 0\)"),
        ((-1, 20, 8, 12), ArgumentError, "of"),
        ((1, 20.0, 8, 12), ArgumentTypeError, ""),
        (5, ArgumentTypeError, ""),
    ],
)
def test_refused_shapes(shape, kind, message):
    with pytest.raises(kind, match=f"^Argument 'x' must be {message}"):
        cpuconv.plan(shape, W)
    with pytest.raises(kind, match=f"^Argument 'x' must be {message}"):
        cpuconv.explain(shape, W.shape)


def test_refused_by_a_plan():
    made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic")
    with pytest.raises(ArgumentError, match=r"'x' must be of shape \(2, 20, 8, 12\), NCHW of .*, not \(1, 20, 8, 12\)"):
        made(X[:1])
    with pytest.raises(ArgumentTypeError, match="'x' must be of dtype float32"):
        made(X.astype(np.float64))
    with pytest.raises(ArgumentError, match="'residual' must be None: the plan adds none, not an array"):
        made(X, residual=X)
    adding = cpuconv.plan(X.shape, W, padding=1, residual=True, strategy="heuristic")
    with pytest.raises(ArgumentError, match="'residual' must be an array: the plan adds one, not None"):
        adding(X)
    close(made(X), EXPECTED)
