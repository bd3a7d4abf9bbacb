"""Tensors that have other tensors as parts, such as torchao's int8 weights: a graph takes the parts in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Path = tuple[str, ...]  # names of attributes, from a tensor to one of its parts


def part_paths(tensor: Any) -> tuple[Path, ...]:
    """Paths of the parts of a tensor, in order; the empty path for a plain tensor or a number."""
    if not is_traceable_wrapper_subclass(tensor):
        return ((),)
    names, _ = tensor.__tensor_flatten__()
    return tuple((name, *rest) for name in names for rest in part_paths(getattr(tensor, name)))


def parts_of(args: Sequence[Any], paths: Sequence[Sequence[Path]]) -> list[Any]:
    """The parts of all arguments, in order, by the paths of each."""
    return [reduce(getattr, path, arg) for arg, each in zip(args, paths, strict=True) for path in each]


def with_parts(function: Callable[..., Any], examples: Sequence[Any]) -> Callable[..., Any]:
    """Make a function of the parts of all arguments, which assembles tensors such as the examples of these."""

    def assembled(*parts: Any) -> Any:
        left = iter(parts)
        return function(*(_assembled(each, left) for each in examples))

    return assembled


def _assembled(example: Any, parts: Iterator[Any]) -> Any:
    """A tensor like an example, of the next parts."""
    if not is_traceable_wrapper_subclass(example):
        return next(parts)
    names, context = example.__tensor_flatten__()
    inner = {name: _assembled(getattr(example, name), parts) for name in names}
    kind: Any = type(example)
    made: torch.Tensor = kind.__tensor_unflatten__(inner, context, example.shape, example.stride())
    return made
