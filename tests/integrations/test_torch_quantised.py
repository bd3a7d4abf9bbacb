"""Modules with the operators of PT2E quantisation: integers in layers, results of eager execution."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import cpuconv

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators, as torchao does

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from support.torch_backend import NAME, fresh, register  # noqa: E402

OPS = torch.ops.quantized_decomposed


def rounded(x: Any, scale: float, zero: int, low: int = 0, high: int = 255, dtype: Any = torch.uint8) -> Any:
    """x after quantisation and dequantisation."""
    limits = (scale, zero, low, high, dtype)
    return OPS.dequantize_per_tensor(OPS.quantize_per_tensor(x, *limits), *limits)


class Quantised(nn.Module):
    """A convolution and a linear layer as torchao's X86InductorQuantizer makes them, with int8 weights."""

    def __init__(self) -> None:
        super().__init__()
        for name, sizes in (("conv", (16, 8, 3, 3)), ("linear", (10, 16))):
            self.register_buffer(name, torch.randint(-127, 128, sizes, dtype=torch.int8))
            self.register_buffer(f"{name}_scale", torch.rand(sizes[0]) * 0.01 + 0.001)
            self.register_buffer(f"{name}_zero", torch.zeros(sizes[0], dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(10))

    def weights(self, name: str) -> Any:
        parts = (getattr(self, name + end) for end in ("", "_scale", "_zero"))
        return OPS.dequantize_per_channel(*parts, 0, -128, 127, torch.int8)

    def forward(self, x: Any) -> Any:
        y = F.relu(F.conv2d(rounded(x, 0.03, 128), self.weights("conv"), padding=1))
        y = rounded(y, 0.05, 0, high=127).mean((2, 3))
        return F.linear(rounded(y, 0.02, 3), self.weights("linear"), self.bias)


class Dynamic(nn.Module):
    """Linear layers: with scales of their input that are computed, and with packed int8 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(32, 16), nn.Buffer(torch.rand(5) * 0.01)
        self.packed = nn.Buffer(torch.randint(-127, 128, (5, 16), dtype=torch.int8))

    def forward(self, x: Any) -> Any:
        scale, zero = OPS.choose_qparams(x, 0, 255, 1e-6, torch.uint8)
        limits = (scale, zero, 0, 255, torch.uint8)
        x = self.linear(OPS.dequantize_per_tensor(OPS.quantize_per_tensor(x, *limits), *limits))
        return torch.ops.aten._weight_int8pack_mm(x, self.packed, self.scale)


class PackedWeight(torch.Tensor):
    """Weights as torchao's subclasses of tensors have them: int8 elements and scales are their parts."""

    @staticmethod
    def __new__(cls, elements: Any, scales: Any) -> PackedWeight:
        return torch.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=scales.dtype)

    def __init__(self, elements: Any, scales: Any) -> None:
        self.elements, self.scales = elements, scales

    def __tensor_flatten__(self) -> Any:
        return ["elements", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, _context: Any, _size: Any, _stride: Any) -> PackedWeight:
        return cls(**parts)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear:
            return F.linear(args[0], args[1].elements.to(args[0].dtype)) * args[1].scales + args[2]
        return super().__torch_function__(function, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is torch.ops.aten.detach.default
        return cls(args[0].elements, args[0].scales)


class Packed(nn.Module):
    """Two linear layers whose weights are pairs of tensors, and a product of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 16), nn.Linear(16, 5)
        for layer in (self.first, self.second):
            elements = torch.randint(-127, 128, layer.weight.shape, dtype=torch.int8)
            layer.weight = nn.Parameter(PackedWeight(elements, torch.rand(len(elements)) * 0.01), requires_grad=False)
        self.third = nn.Buffer(torch.randint(-127, 128, (5, 8), dtype=torch.int8))

    def forward(self, x: Any) -> Any:
        y = (self.second(F.gelu(self.first(x))) * 30).clamp(-127, 127).to(torch.int8)
        return torch._int_mm(y, self.third).float()


def test_weights_of_parts() -> None:
    """Weights that have other tensors as parts run, and updates of their parts are noticed."""
    torch.manual_seed(3)
    module, x = Packed().eval(), torch.randn(24, 32)
    with fresh():
        fast = torch.compile(module, backend=NAME, fullgraph=True)
        for _ in range(2):
            assert (fast(x) - module(x)).abs().max() <= 254  # two numbers of a row may be rounded otherwise
            module.second.weight.scales.mul_(2)


@pytest.mark.parametrize("kind", [Quantised, Dynamic])
def test_quantised(kind: type[nn.Module]) -> None:
    """By both ways in; layers of stated scales are computed with integers."""
    register()
    torch._dynamo.reset()
    torch.manual_seed(2)
    module = kind().eval()
    x = torch.randn(*((2, 8, 6, 5) if kind is Quantised else (4, 32)))
    model = cpuconv.from_torch(module, (x,), threads=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", cpuconv.CpuconvWarning)
        expected, found = module(x), torch.compile(module, backend=NAME)(x)
    for got in (torch.from_numpy(model(x.numpy())), found):
        assert (got - expected).abs().max() <= 1e-2 * expected.abs().max()  # few numbers may be rounded to another step
    if kind is Quantised:
        text = str(model.explain())
        assert "QuantizedConv" in text and "QuantizedLinear" in text
