"""Arrays of any strides and of other libraries, in place and unwritten; results in `out`."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError
from support import oracle
from support.example import EXPECTED, W, X, close, conv
from support.strided import VIEWS, Convertible, Exporter


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("algorithm", [None, "direct", "im2col", "winograd"])
def test_views(view, algorithm):
    """Whatever the strides, as input and as residual, the result is the same and nothing is written."""
    residual = oracle.normal(EXPECTED.shape, 5)
    options = {"padding": 1, "strategy": "heuristic", "threads": 1, "algorithm": algorithm}
    made = cpuconv.plan(X.shape, W, **options)
    adding = cpuconv.plan(X.shape, W, residual=True, activation="relu", **options)
    x, added = view(X), view(residual)
    for _ in range(2):
        close(made(x), EXPECTED)
        close(adding(x, residual=added), np.maximum(EXPECTED + residual, 0))
        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(added, residual)
        x.flags.writeable = added.flags.writeable = False


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


@pytest.mark.parametrize("kind", [Exporter, Convertible])
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


def test_torch_tensors_whose_memory_has_the_other_sign(torch):
    """The imaginary part of a conjugate is a view that says so by a bit."""
    turned = [torch.from_numpy(-each)._neg_view() for each in (X, W)]
    assert all(each.is_neg() for each in turned)
    y = conv(*turned)
    assert type(y) is torch.Tensor
    close(y.numpy(), EXPECTED)
    np.testing.assert_array_equal(cpuconv.reorder(turned[0], "NCHW", "NCHW").numpy(), X)
    with pytest.raises(ArgumentTypeError, match="'out' must be"):
        conv(X, W, out=torch.empty(EXPECTED.shape)._neg_view())


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
    with pytest.raises(ArgumentError, match="'out' must be separate memory"):
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
    with pytest.raises(ArgumentError, match="'out' must be separate memory, not memory that an input occupies"):
        conv(out=out, **arrays)
    np.testing.assert_array_equal(memory, before)
