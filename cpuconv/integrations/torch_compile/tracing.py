"""Trace of what Dynamo captured: a graph of undecomposed ATen operators, without in-place ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._guards import tracing
from torch.fx.experimental.proxy_tensor import make_fx

from cpuconv.integrations.torch_compile.subclasses import Path, part_paths, parts_of, with_parts
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
    paths : tuple[tuple[Path, ...], ...]
        Paths of the inputs' parts, of which all positions are; empty if no input has parts.
    """

    module: fx.GraphModule
    static: tuple[int, ...]
    numbers: tuple[tuple[int, float], ...]
    writes: tuple[tuple[int, int], ...]
    same: tuple[tuple[int, int], ...]
    paths: tuple[tuple[Path, ...], ...] = ()


def traced(captured: fx.GraphModule, example_inputs: Sequence[Any]) -> Traced:
    """Trace a captured graph on the tensors without elements that Dynamo made for it.

    Raises
    ------
    Unsupported
        It is in training mode, has in-place operators without a functional form, or has inputs or outputs with other
        tensors as parts, except for weights.
    """
    module, numbers = _with_numbers(captured, example_inputs)
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    function, paths = _of_parts(module, inputs)
    autocast = torch.is_autocast_enabled("cpu") or any(node.target in _AUTOCAST for node in module.graph.nodes)
    fakes = [node.meta["example_value"] for node in inputs]
    with torch.no_grad(), tracing(None):  # Dynamo's context in torch 2.6 has another fake mode than the fakes
        trace = make_fx(function, tracing_mode="symbolic", pre_dispatch=not autocast, _allow_non_fake_inputs=True)
        made = trace(*(parts_of(fakes, paths) if paths else fakes))
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
    owners = [at for at, each in enumerate(paths or [((),)] * len(inputs)) for _ in each]
    static = tuple(at for at, owner in enumerate(owners) if _is_static(inputs[owner]))
    numbers = tuple((owners.index(at), number) for at, number in numbers)
    return Traced(made, static, numbers, tuple(writes), tuple(same), paths)


def _of_parts(
    module: fx.GraphModule, inputs: Sequence[fx.Node]
) -> tuple[Callable[..., Any], tuple[tuple[Path, ...], ...]]:
    """The module, or a function of the parts of its inputs; and the paths of these parts, empty if there are none."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    paths = tuple(part_paths(node.meta["example_value"]) for node in inputs)
    others = [node for node, each in zip(inputs, paths, strict=True) if each != ((),) and not _is_static(node)]
    others += [node for node in output.all_input_nodes if part_paths(node.meta.get("example_value")) != ((),)]
    if others:
        raise Unsupported("inputs or outputs that have other tensors as parts")
    if all(each == ((),) for each in paths):
        return module, ()
    return with_parts(module, [node.meta["example_value"] for node in inputs]), paths


def _is_static(node: fx.Node) -> bool:
    """Whether an input is a parameter or a buffer."""
    return _STATIC in (node.meta.get("tensor_dict") or {})


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
