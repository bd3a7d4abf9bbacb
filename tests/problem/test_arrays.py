"""Array intake: the same memory, or an error that says what to do; and what may be written to."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.problem.arrays import as_float32_view, check_activation_array, check_out, logical_shape
from cpuconv.problem.problem import ConvProblem
from support.strided import Convertible, Exporter, read_only

BASE = np.arange(240, dtype=np.float32).reshape(2, 5, 4, 6)


class Tensor(Exporter):
    """What a tensor that records gradients does: exports only once detached."""

    requires_grad = True

    def __dlpack__(self, **keywords):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient")
        return super().__dlpack__(**keywords)

    def detach(self):
        other = Tensor(self.array)
        other.requires_grad = False
        return other


@pytest.mark.parametrize(
    "x", [BASE, BASE[:, ::2], BASE[::-1, :, ::-1], BASE.transpose(0, 2, 3, 1), read_only(BASE), BASE[:0]]
)
def test_any_array_is_taken_as_it_is(x):
    view = as_float32_view(x, "x")
    assert type(view) is np.ndarray and view.shape == x.shape and view.strides == x.strides
    assert view.__array_interface__["data"][0] == x.__array_interface__["data"][0]


@pytest.mark.parametrize("wrap", [Exporter, Convertible, Tensor])
def test_foreign_objects_share_their_memory(wrap):
    view = as_float32_view(wrap(BASE[:, ::2]), "x")
    assert np.shares_memory(view, BASE) and np.array_equal(view, BASE[:, ::2])


def test_subclass_is_seen_as_a_plain_array():
    class Named(np.ndarray):
        pass

    view = as_float32_view(BASE[0, 0].view(Named), "x")
    assert type(view) is np.ndarray and view.shape == (4, 6)


def test_only_unaligned_memory_is_copied():
    record = np.zeros(3, np.dtype([("flag", "u1"), ("value", "<f4")]))
    record["value"] = [1, 2, 3]
    view = as_float32_view(record["value"], "x")
    assert view.flags.aligned and view.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, bool, np.complex64, object])
def test_other_dtypes_are_not_cast(dtype):
    message = rf"'w' must be of dtype float32: cast it with .astype\(np.float32\), not {np.dtype(dtype)}"
    with pytest.raises(ArgumentTypeError, match=message):
        as_float32_view(BASE.astype(dtype), "w")


def test_foreign_byte_order():
    with pytest.raises(ArgumentTypeError, match=r"'x' must be float32 in native byte order: .*, not '[<>]f4'"):
        as_float32_view(BASE.astype(BASE.dtype.newbyteorder()), "x")


@pytest.mark.parametrize("x", [[[1.0]], (1.0,), None, 3.0, "x", memoryview(BASE)])
def test_no_array(x):
    given = "None" if x is None else f"a {type(x).__name__}"
    with pytest.raises(ArgumentTypeError, match=f"'bias' must be a NumPy array .*, not {given}"):
        as_float32_view(x, "bias")


def test_masked_array():
    with pytest.raises(ArgumentTypeError, match=r"without a mask: fill it with .filled\(\)"):
        as_float32_view(np.ma.masked_less(BASE, 3), "x")


def test_other_device():
    with pytest.raises(ArgumentTypeError, match="'x' must be an array in CPU memory, not one on device 2"):
        as_float32_view(Exporter(BASE, device=2), "x")


def test_export_that_fails_is_explained():
    tensor = Tensor(BASE)
    tensor.detach = lambda: tensor
    with pytest.raises(ArgumentTypeError, match="'x' must be an array, not a Tensor that cannot export .*gradient"):
        as_float32_view(tensor, "x")


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    for tensor in (torch.ones(2, 3), torch.ones(2, 3, requires_grad=True), torch.nn.Parameter(torch.ones(2, 3)).T):
        view = as_float32_view(tensor, "x")
        assert view.shape == tuple(tensor.shape) and view.__array_interface__["data"][0] == tensor.data_ptr()
    for tensor in (
        torch.ones(2, dtype=torch.float64),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, device="meta"),
    ):
        with pytest.raises(ArgumentTypeError, match="^Argument 'x' must be "):
            as_float32_view(tensor, "x")


def test_out_accepted():
    check_out(np.empty((2, 3), np.float32), (2, 3))
    check_out(np.empty((0, 3), np.float32), (0, 3), [np.empty((0, 3), np.float32), None])
    halves = np.empty((2, 4), np.float32)
    check_out(halves[0], (4,), [halves[1]])


def test_activation_array_shapes():
    p = ConvProblem(2, 20, 9, 9, 8, 3, 3, in_layout="NCHW16c", out_layout="NHWC")
    check_activation_array(np.empty((2, 2, 9, 9, 16)), p, "x")
    check_activation_array(np.empty((2, 7, 7, 8)), p, "residual")
    with pytest.raises(
        ArgumentError, match=r"'x' must be of shape \(2, 2, 9, 9, 16\), NCHW16c of \(N, C, H, W\) = .*, not"
    ):
        check_activation_array(np.empty((2, 20, 9, 9)), p, "x")
    with pytest.raises(ArgumentError, match=r"'residual' must be of shape \(2, 7, 7, 8\), NHWC"):
        check_activation_array(np.empty((2, 8, 7, 7)), p, "residual")


def test_logical_shape():
    assert logical_shape(BASE, "NCHW", 9, "x") == (2, 5, 4, 6)
    assert logical_shape(BASE, "NHWC", 9, "x") == (2, 6, 5, 4)
    assert logical_shape(np.empty((2, 2, 4, 6, 8)), "NCHW8c", 9, "x") == (2, 9, 4, 6)
    with pytest.raises(ArgumentError, match=r"'x' must be of rank 4 for NCHW, not of rank 3, \(5, 4, 6\)"):
        logical_shape(BASE[0], "NCHW", 5, "x")
    with pytest.raises(ArgumentError, match=r"'x' must be of shape \(2, 3, 4, 6, 8\), NCHW8c of 17 channels, not"):
        logical_shape(np.empty((2, 2, 4, 6, 8)), "NCHW8c", 17, "x")
    with pytest.raises(ArgumentError, match="'in_layout' must be one of NCHW, .*, not 'NCWH'"):
        logical_shape(BASE, "NCWH", 5, "x")
