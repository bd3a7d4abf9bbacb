"""Comparison of graphs that the ATen reader made with the modules that they were read from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from cpuconv.network.interpret import interpret
from cpuconv.network.sizes.specialise import specialise
from cpuconv.problem.arrays import writable_view
from cpuconv.reading.aten.exported import read_module

BOUND = 3e-6


def plane(*sizes: int) -> Any:
    return torch.randn(*(sizes or (2, 4, 9, 7)))


def rows(*sizes: int) -> Any:
    return torch.randn(*(sizes or (2, 5, 8)))


def index(high: int, *sizes: int) -> Any:
    return torch.randint(-high, high, sizes)


class Of(nn.Module):
    """A module of a function."""

    def __init__(self, function: Callable[..., Any], *layers: Any) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def compared(module: Any, graph: Any, args: tuple[Any, ...]) -> None:
    """Compare a graph with the module that it was read from."""
    with torch.no_grad():
        expected = [each for each in pytree.tree_leaves(module(*[each.clone() for each in args])) if each is not None]
    feed = {name: writable_view(each.contiguous(), name) for name, each in zip(graph.inputs, args, strict=True)}
    made = specialise(graph, {name: array.shape for name, array in feed.items()})
    for got, wanted in zip(interpret(made, feed).values(), expected, strict=True):
        array = np.asarray(wanted.float() if wanted.dtype == torch.bfloat16 else wanted)
        assert got.shape == array.shape
        assert np.dtype(got.dtype).name == str(wanted.dtype).removeprefix("torch.")
        got = got.astype(np.float64)
        finite = np.isfinite(array)
        np.testing.assert_array_equal(got[~finite], array[~finite])
        error = np.abs(got[finite] - array[finite]).max(initial=0) / max(1, np.abs(array[finite]).max(initial=0))
        assert error < (1e-2 if wanted.dtype in (torch.bfloat16, torch.float16) else BOUND)


def run(module: Any, *args: Any, batches: tuple[int, ...] = ()) -> None:
    """Compare a module read with fixed sizes, and with an open batch at several sizes."""
    module = (module if isinstance(module, nn.Module) else Of(module)).eval()
    compared(module, read_module(module, args), args)
    if not batches:
        return
    shapes = tuple({0: torch.export.Dim("batch", min=1, max=64)} for _ in args)
    opened = read_module(module, args, dynamic_shapes=(shapes,) if isinstance(module, Of) else shapes)
    for batch in batches:
        compared(module, opened, tuple(torch.cat([each] * batch)[:batch] for each in args))
