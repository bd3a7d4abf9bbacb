"""Modules for tests of `torch.compile(backend="cpuconv")`, and comparison with eager execution."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from cpuconv.errors import CpuconvWarning

NAME = "cpuconv"
BOUND = 2e-5


def register() -> None:
    """Register the backend by its name, for environments in which the package was installed without it."""
    from cpuconv.integrations.torch_compile.backend import compile_graph

    if NAME not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(compile_graph, name=NAME)


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Nothing compiled before, no gradients, and warnings as errors."""
    from cpuconv.integrations.torch_compile import backend

    register()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    backend._warned.clear()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", CpuconvWarning)
        yield


@contextlib.contextmanager
def compiled_parts() -> Iterator[list[Any]]:
    """A list to which each part of a graph is added when it is compiled."""
    from cpuconv.integrations.torch_compile.calling import Part

    made: list[Any] = []
    original = Part.__init__

    def counted(self: Any, *args: Any) -> None:
        original(self, *args)
        made.append(self)

    with mock.patch.object(Part, "__init__", counted):
        yield made


class Net(nn.Module):
    """A convolution with a norm, and a linear layer."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels)
        self.norm.running_mean.normal_()
        self.linear = nn.Linear(channels, 5)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm(self.conv(x)), inplace=True)
        return self.linear(y.mean((2, 3)))


class Function(nn.Module):
    """A convolution, and a function of its input and result."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3, padding=1), function

    def forward(self, x: Any) -> Any:
        return self.function(x, self.conv(x))


def images(*sizes: int) -> Any:
    return torch.randn(*(sizes or (2, 3, 8, 9)))


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module.eval() if isinstance(module, nn.Module) else module, backend=NAME, **options)


def same(results: Any, expected: Any) -> None:
    """Equal trees of tensors, up to rounding, with equal strides."""
    (got, tree), (wanted, other) = pytree.tree_flatten(results), pytree.tree_flatten(expected)
    assert tree == other
    for a, b in zip(got, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
            assert torch.allclose(a, b, rtol=BOUND, atol=BOUND, equal_nan=True)
        else:
            assert a == b
