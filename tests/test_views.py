"""Arrays of any strides and of other libraries, in place and unwritten; results in `out`."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from example import EXPECTED, W, X, close, conv

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.solvers import TABLE

VIEWS = {
    "columns": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "rows": lambda x: np.repeat(x, 3, axis=2)[:, :, 1::3],
    "half": lambda x: np.concatenate([x, x], axis=1)[:, :20],
    "channels": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "mirrored": lambda x: x[:, :, ::-1, ::-1].copy()[:, :, ::-1, ::-1],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "nhwc": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "whcn": lambda x: np.ascontiguousarray(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0),
    "fortran": lambda x: np.asfortranarray(x),
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    "readonly": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("algorithm", [None, "direct", "im2col"])
def test_views(view, algorithm):
    """Whatever the strides, as input and as residual, the result is the same and nothing is written."""
    x = view(X)
    np.testing.assert_array_equal(x, X)
    if algorithm in (None, *(solver.NAME for solver in TABLE)):
        made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic", threads=1, algorithm=algorithm)
        close(made(x), EXPECTED)
        np.testing.assert_array_equal(x, X)


def test_views_as_residual():
    residual = oracle.normal(EXPECTED.shape, 5)
    expected = np.maximum(EXPECTED + residual, 0)
    for view in (
        np.ascontiguousarray(residual.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        residual[:, :, ::-1].copy()[:, :, ::-1],
        np.asfortranarray(residual),
    ):
        for algorithm in ("direct", "winograd"):
            made = cpuconv.plan(
                X.shape, W, padding=1, residual=True, activation="relu", strategy="heuristic", algorithm=algorithm
            )
            close(made(X, residual=view), expected)
            np.testing.assert_array_equal(view, residual)


def test_broadcast_input():
    """Strides of zero."""
    x = np.broadcast_to(X[:1, :1], X.shape)
    close(conv(x), conv(x.copy()))


def test_one_plan_many_views():
    """More kinds of strides than a plan keeps contexts for; back to the first at the end."""
    made = cpuconv.plan((1, 20, 8, 12), W, padding=1, strategy="heuristic", threads=1)
    for gap in [*range(12), 0, 1]:
        wide = np.full((1, 20, 8, 12 + gap), np.nan, np.float32)
        wide[..., :12] = X[:1]
        close(made(wide[..., :12]), EXPECTED[:1])


class Exporter:
    """A tensor of another library, on the CPU."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape = array.shape


class WithDlpack(Exporter):
    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class WithArray(Exporter):
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array


@pytest.mark.parametrize("kind", [WithDlpack, WithArray])
def test_foreign_arrays(kind):
    bias = np.arange(24, dtype=np.float32)
    expected = EXPECTED + bias[:, None, None]
    close(conv(kind(X), kind(W), kind(bias)), expected)
    made = cpuconv.plan(X.shape, kind(W), kind(bias), padding=1, residual=True, strategy="heuristic")
    close(made(kind(X), residual=kind(EXPECTED.astype(np.float32))), expected + EXPECTED)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_tensors(torch):
    x, w = torch.from_numpy(X.copy()), torch.from_numpy(W.copy())
    residual = torch.from_numpy(EXPECTED.astype(np.float32))
    close(conv(x, w, residual=residual).numpy(), 2 * EXPECTED)
    close(conv(x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)).numpy(), EXPECTED)
    close(conv(x.clone().requires_grad_(), w, torch.ones(24)).numpy(), EXPECTED + 1)
    assert isinstance(conv(X, w), np.ndarray)  # the result is of the input's kind
    with pytest.raises(ArgumentTypeError, match="'x' must be of dtype float32"):
        conv(x.double())


@pytest.mark.parametrize("requires_grad", [True, False])
def test_torch_parameters_that_change(torch, requires_grad):
    w = torch.nn.Parameter(torch.from_numpy(W.copy()), requires_grad=requires_grad)
    x = torch.from_numpy(X)
    for factor in (1, 2, 4):
        y = conv(x, w)
        assert type(y) is torch.Tensor and not y.requires_grad
        close(y.numpy(), factor * EXPECTED)
        with torch.no_grad():
            w *= 2
    assert w.requires_grad == requires_grad


def test_torch_out(torch):
    x, out = torch.from_numpy(X.copy()), torch.full(EXPECTED.shape, torch.nan)
    made = cpuconv.plan(X.shape, torch.from_numpy(W), padding=1, strategy="heuristic")
    for call in (lambda **to: conv(x, **to), lambda **to: made(x, **to), lambda **to: made(X, **to)):
        out[...] = torch.nan
        assert call(out=out) is out
        close(out.numpy(), EXPECTED)
    assert type(made(x)) is torch.Tensor
    close(made(x).numpy(), EXPECTED)
    for wrong, kind, message in (
        (torch.empty(EXPECTED.shape, dtype=torch.float64), ArgumentTypeError, "of dtype float32"),
        (torch.empty(2, 24, 8, 11), ArgumentError, r"of shape \(2, 24, 8, 12\)"),
        (torch.empty(2, 24, 12, 8).transpose(2, 3), ArgumentError, "C-contiguous"),
        (torch.empty(EXPECTED.shape, device="meta"), ArgumentTypeError, "in CPU memory"),
    ):
        for call in (conv, lambda x, out: made(x, out=out)):
            with pytest.raises(kind, match=f"'out' must be .*{message}"):
                call(x, out=wrong)
    same = torch.zeros(2, 20, 8, 12)
    with pytest.raises(ArgumentError, match="'out' must be memory of its own"):
        conv(same, W[:20], out=same)


# out=


def test_out():
    out = np.full(EXPECTED.shape, np.nan, np.float32)
    assert conv(out=out) is out
    close(out, EXPECTED)
    out[...] = np.nan
    made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic")
    assert made(X, out=out) is out
    close(out, EXPECTED)
    assert not np.shares_memory(made(X), made(X))


@pytest.mark.parametrize(
    "out, kind, message",
    [
        (lambda: np.empty((2, 24, 8, 11), np.float32), ArgumentError, r"'out' must be of shape \(2, 24, 8, 12\), not"),
        (lambda: np.empty(EXPECTED.shape), ArgumentTypeError, "'out' must be of dtype float32"),
        (lambda: [1.0], ArgumentTypeError, "'out' must be a NumPy array or a torch tensor, not a list"),
        (lambda: np.empty((2, 24, 12, 8), np.float32).swapaxes(2, 3), ArgumentError, "'out' must be C-contiguous"),
        (lambda: np.broadcast_to(np.float32(0), EXPECTED.shape), ArgumentError, "'out' must be writable, not"),
    ],
)
def test_out_refused(out, kind, message):
    with pytest.raises(kind, match=message):
        conv(out=out())


@pytest.mark.parametrize("overlapped", ["x", "residual", "w", "bias"])
def test_out_overlaps_an_input(overlapped):
    memory = np.ones(8 << 10, np.float32)
    arrays = {"x": X, "residual": EXPECTED.astype(np.float32), "w": W, "bias": np.ones(24, np.float32)}
    shape = arrays[overlapped].shape
    arrays[overlapped] = memory[: int(np.prod(shape))].reshape(shape)
    out = memory[: EXPECTED.size].reshape(EXPECTED.shape)
    before = memory.copy()
    with pytest.raises(ArgumentError, match="'out' must be memory of its own, not memory that an input occupies"):
        conv(out=out, **arrays)
    np.testing.assert_array_equal(memory, before)
