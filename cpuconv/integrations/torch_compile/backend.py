"""The function that `torch.compile` calls for `backend="cpuconv"`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.utils import counters

from cpuconv.errors import ArgumentError, CpuconvWarning, must
from cpuconv.integrations.torch_compile.calling import CompiledGraph, eager_callable
from cpuconv.integrations.torch_compile.partitions import is_product
from cpuconv.integrations.torch_compile.tracing import traced
from cpuconv.reading.aten.emitter import Unsupported

OPTIONS = ("accuracy", "idle_bytes", "precision", "strategy", "threads")
_warned: set[str] = set()


def compile_graph(
    captured: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured.

    Parameters
    ----------
    captured : fx.GraphModule
    example_inputs : sequence
        Tensors and sizes; parameters are among them.
    options : mapping of str or None
        Some of `OPTIONS`, as for `cpuconv.compile`.
    mode : str or None
        Inductor's modes change nothing.

    Raises
    ------
    ArgumentError
        There is no such option.

    Warns
    -----
    CpuconvWarning
        The graph, or some of its operators, stay with PyTorch; once for each reason.
    """
    unknown = [name for name in options or {} if name not in OPTIONS]
    if unknown:
        raise ArgumentError(must("options", f"a dict of {', '.join(OPTIONS)}", f"one with {unknown[0]!r}"))
    _warn_of_breaks()
    tensors = [each for each in example_inputs if isinstance(each, torch.Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return _eager(captured, "gradients are enabled: call it under torch.no_grad() or torch.inference_mode()")
    if any(each.device.type != "cpu" for each in tensors):
        return _eager(captured, "some tensors are not in CPU memory")
    try:
        graph = traced(captured, example_inputs)
    except Unsupported as reason:
        advice = ": call module.eval()" if str(reason) == "training mode" else ""
        return _eager(captured, f"it has {reason}{advice}")
    except Exception as error:  # of any kind: tracing runs all of PyTorch
        return _eager(captured, f"it cannot be traced: {error}")
    if not any(map(is_product, graph.module.graph.nodes)):
        return _eager(captured, "")
    return CompiledGraph(graph, options or {}, captured)


def _eager(captured: fx.GraphModule, reason: str) -> Callable[..., Any]:
    """The captured graph itself, with a warning."""
    if reason:
        _warn_once(f"A graph stays with PyTorch, as {reason}.")
    made: Callable[..., Any] = eager_callable(captured)
    return made


def _warn_of_breaks() -> None:
    """Warn of the places at which Dynamo divided the program."""
    for reason in counters["graph_break"]:
        _warn_once(f"Dynamo divided the program (a graph break): {reason.partition(chr(10))[0]}")


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, CpuconvWarning, stacklevel=3)
