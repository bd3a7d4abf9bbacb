"""Trace of what Dynamo captured: a graph of undecomposed ATen operators, without in-place ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from cpuconv.reading.aten.decomposing import decompose
from cpuconv.reading.aten.emitter import Unsupported
from cpuconv.reading.aten.functional import is_view, make_functional, storages, viewed
from cpuconv.reading.aten.fx_reader import is_check

_AUTOCAST = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)
_MODES = (torch._C._set_grad_enabled, *_AUTOCAST)
_TRAINED = {"batch_norm": 5, "instance_norm": 5, "dropout": 2, "feature_dropout": 2, "alpha_dropout": 2}
_STATIC = "_dynamo_static_input_type"


class Traced(NamedTuple):
    """A graph of ATen operators with the roles of its inputs and outputs.

    Attributes
    ----------
    module : fx.GraphModule
        Returns the captured outputs, and then the new values of inputs that were written to.
    static : tuple[int, ...]
        Positions of inputs that are parameters or buffers.
    numbers : tuple[tuple[int, float], ...]
        Positions and values of inputs that are numbers, and were traced as constants.
    writes : tuple[tuple[int, int], ...]
        Positions of inputs that are written to, and of the outputs with their values.
    same : tuple[tuple[int, int], ...]
        Positions of outputs that are inputs that were written to, and of these inputs.
    """

    module: fx.GraphModule
    static: tuple[int, ...]
    numbers: tuple[tuple[int, float], ...]
    writes: tuple[tuple[int, int], ...]
    same: tuple[tuple[int, int], ...]


def traced(captured: fx.GraphModule, example_inputs: Sequence[Any]) -> Traced:
    """Trace a captured graph on the tensors without elements that Dynamo made for it.

    Raises
    ------
    Unsupported
        It is in training mode, or has in-place operators without a functional form.
    """
    module, numbers = _with_numbers(captured, example_inputs)
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    autocast = torch.is_autocast_enabled("cpu") or any(node.target in _AUTOCAST for node in module.graph.nodes)
    fakes = [node.meta["example_value"] for node in inputs]
    with torch.no_grad():
        made = make_fx(module, tracing_mode="symbolic", pre_dispatch=not autocast, _allow_non_fake_inputs=True)(*fakes)
    graph = made.graph
    for node in reversed(graph.nodes):
        if node.target in _MODES or is_check(node):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    _check_inference(graph)
    (output,) = (node for node in graph.nodes if node.op == "output")
    outputs = [*output.args[0]]
    memory = {node: storages(node) for node in outputs if isinstance(node, fx.Node)}
    changed = make_functional(graph)
    if any(node.op != "placeholder" for node in changed):
        raise Unsupported("a write to a constant")
    places = [node for node in graph.nodes if node.op == "placeholder"]
    values = [*output.args[0]]
    same, writes = [], []
    for number, (node, new) in enumerate(changed.items()):
        writes.append((places.index(node), len(values) + number))
        for at, old in enumerate(outputs):
            if isinstance(old, fx.Node) and memory[old] & storages(node):
                if values[at] is not new and values[at] is not node:
                    raise Unsupported("an output that is a view of an input that is written to")
                same.append((at, places.index(node)))
    output.args = ([*values, *changed.values()],)
    decompose(graph)
    made.recompile()
    static = tuple(at for at, node in enumerate(inputs) if _STATIC in (node.meta.get("tensor_dict") or {}))
    return Traced(made, static, numbers, tuple(writes), tuple(same))


def _with_numbers(
    captured: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[fx.GraphModule, tuple[tuple[int, float], ...]]:
    """Replace numbers that Dynamo passes as tensors, such as the epsilon of a layer, by their values."""
    graph = fx.Graph()
    output = graph.graph_copy(captured.graph, {})
    graph.output(output)
    module = fx.GraphModule(captured, graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    numbers = {}
    for node in [*graph.nodes]:
        if node.op == "call_method" and node.target == "item" and node.args[0] in inputs:
            at = inputs.index(node.args[0])
            numbers[at] = float(example_inputs[at])
            node.replace_all_uses_with(numbers[at])
            graph.erase_node(node)
    module.recompile()
    return module, tuple(numbers.items())


def _check_inference(graph: fx.Graph) -> None:
    """Refuse layers in training mode."""
    for node in graph.nodes:
        name = getattr(node.target, "_opname", "")
        own = name == "instance_norm" and node.args[3] is None  # statistics of the input itself, as at inference
        if name in _TRAINED and node.args[_TRAINED[name] :][:1] == (True,) and not own:
            raise Unsupported("training mode")


def shared_views(graph: fx.Graph) -> set[fx.Node]:
    """Views that PyTorch must make: outputs that share memory with an input or with another output."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    outputs = [node for node in output.args[0] if isinstance(node, fx.Node) and node.op != "placeholder"]
    inputs = [storages(node) for node in graph.nodes if node.op in ("placeholder", "get_attr")]
    found: set[fx.Node] = set()
    for node in outputs:
        own = storages(node)
        others = [storages(other) for other in outputs if other is not node]
        if any(own & other for other in (*inputs, *others)):
            while is_view(node):
                found.add(node)
                node = viewed(node)
    return found
