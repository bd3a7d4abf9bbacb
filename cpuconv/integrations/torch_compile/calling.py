"""The callable of a compiled graph: parts run as models, with packed weights, and the rest by PyTorch."""

from __future__ import annotations

import copy
import operator
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from baselib.locks import Lock
from cpuconv.api.network import compile
from cpuconv.errors import ArgumentError, CpuconvError, CpuconvWarning
from cpuconv.integrations.torch_compile.partitions import partitioned
from cpuconv.integrations.torch_compile.subclasses import parts_of
from cpuconv.integrations.torch_compile.tracing import Traced, shared_views
from cpuconv.integrations.torch_compile.weights import Snapshot
from cpuconv.problem.arrays import FLOAT32, like, writable_view
from cpuconv.reading.aten import fx_reader

try:
    from torch._dynamo import aot_compile_types as _saving
except ImportError:  # before torch 2.9, which cannot save compiled functions
    _saving = None
SerializableCallable: Any = getattr(_saving, "SerializableCallable", object)
_eager_callable: Any = getattr(_saving, "GraphModuleSerializableCallable", operator.attrgetter("forward"))  # till 2.11

_KEPT = 4  # sets of parameters whose packed weights are kept, such as those of several instances of a class


class CompiledGraph(SerializableCallable):
    """A captured graph. Several threads may call it concurrently.

    Parts are compiled at the first call with some parameters, and again when these have changed.
    """

    def __init__(self, traced: Traced, options: Mapping[str, Any], captured: fx.GraphModule | None = None) -> None:
        self._traced, self._options, self._captured = traced, dict(options), captured
        self._warned = False
        self._weights = _getter(traced.static)
        self._made: list[tuple[Snapshot, Callable[[Sequence[Any]], list[Any]]]] = []
        self._making = Lock(brief=False)

    def __call__(self, *args: Any) -> list[Any]:
        """Compute all outputs, and write to the inputs that the captured graph writes to."""
        traced = self._traced
        parts = parts_of(args, traced.paths) if traced.paths else args
        if traced.numbers and any(float(parts[at]) != number for at, number in traced.numbers):
            return self._with_other_numbers(args)
        results: list[Any] = self._fitting(self._weights(parts))(parts)
        if traced.writes:
            for at, place in traced.writes:
                parts[at].copy_(results[place])
            for place, at in traced.same:
                results[place] = parts[at]
            del results[-len(traced.writes) :]
        return results

    def _with_other_numbers(self, args: Sequence[Any]) -> Any:
        """Compute by PyTorch: numbers of layers or arguments are not those that were traced."""
        if self._captured is None:
            raise ArgumentError("Numbers must be those that the saved function was compiled with.")
        return self._captured(*args)

    def _fitting(self, weights: Sequence[torch.Tensor]) -> Any:
        """The function of all inputs for some parameters."""
        for known, run in self._made:
            if known.fits(weights):
                return run
        with self._making:
            for known, run in self._made:
                if known.fits(weights):
                    return run
            same = [entry for entry in self._made if all(map(lambda a, b: a is b, weights, entry[0].tensors))]
            snapshot = Snapshot(weights)
            run = self._compiled(dict(zip(self._traced.static, weights, strict=True)))
            others = [entry for entry in self._made if entry not in same]
            self._made = [(snapshot, run), *others[: _KEPT - 1]]
            return run

    def _compiled(self, weights: Mapping[int, torch.Tensor]) -> Any:
        """Compile the parts of the graph for some parameters; return a function of all inputs."""
        module = copy_module(self._traced.module)
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        constants: dict[fx.Node, Any] = {inputs[at]: tensor.detach() for at, tensor in weights.items()}
        constants |= {inputs[at]: number for at, number in self._traced.numbers}
        for node in module.graph.nodes:
            if node.op == "get_attr":
                constants[node] = getattr(module, node.target)
        left = {*shared_views(module.graph)}
        while True:
            parts = partitioned(module, left)
            refused = {node for part in parts for node in fx_reader.refused(part, constants)}
            if not refused:
                break
            left |= refused
        self._warn_of_eager(module, [node for part in parts for node in part])
        fused = fuse_by_partitions(module, [dict.fromkeys(part) for part in parts], prefix="part_")
        known = {node.name: value for node, value in constants.items()}
        for node in [*fused.graph.nodes]:
            if node.op == "call_module":
                self._bind(fused, node, known)
        places = [node for node in fused.graph.nodes if node.op == "placeholder"]
        needed = [at for at, node in enumerate(places) if node.users]
        for node in places:
            if not node.users:
                fused.graph.erase_node(node)
        fused.recompile()
        select, run = _getter(needed), fused.forward
        return lambda args: [*run(*select(args))]

    def _bind(self, module: fx.GraphModule, node: fx.Node, known: Mapping[str, Any]) -> None:
        """Compile a part, and let the graph call it; PyTorch computes a part that cannot be compiled."""
        part = getattr(module, str(node.target))
        places = [each for each in part.graph.nodes if each.op == "placeholder"]
        pairs = [*zip(places, node.args, strict=True)]
        try:
            bound = Part(
                part.graph, {place: known[each.name] for place, each in pairs if each.name in known}, self._options
            )
        except CpuconvError as error:
            warnings.warn(f"A part of the graph stays with PyTorch: {error}", CpuconvWarning, stacklevel=2)
            return
        node.args = tuple(pairs[at][1] for at in bound.places)
        delattr(module, str(node.target))
        module.__dict__[str(node.target)] = bound

    def _warn_of_eager(self, module: fx.GraphModule, computed: Sequence[fx.Node]) -> None:
        """Warn once of operators that stay with PyTorch, except for views and numbers."""
        inside = {*computed}
        if self._warned or not inside:
            return
        left = {str(node.target) for node in module.graph.nodes
                if node.op == "call_function" and node not in inside and fx_reader.adapter_of(node) is None
                and fx_reader.computes(node)}  # fmt: skip
        if left:
            self._warned = True
            names = ", ".join(sorted(left))
            warnings.warn(f"These operators stay with PyTorch: {names}.", CpuconvWarning, stacklevel=2)

    @classmethod
    def serialize_compile_artifacts(cls, fn: CompiledGraph) -> bytes:
        """Encode the graph; weights are not part of it."""
        from torch.fx._graph_pickler import GraphPickler, Options

        module = copy_module(fn._traced.module)
        for node in module.graph.nodes:
            node.meta = {name: node.meta[name] for name in ("val",) if name in node.meta}
        encoded = GraphPickler.dumps(module, Options(ops_filter=None))
        return pickle.dumps((encoded, tuple(fn._traced)[1:], fn._options))

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> CompiledGraph:
        """Decode a graph."""
        from torch._subclasses import FakeTensorMode
        from torch.fx._graph_pickler import GraphPickler
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        encoded, rest, options = pickle.loads(data)
        module = GraphPickler.loads(encoded, FakeTensorMode(shape_env=ShapeEnv()))
        module.recompile()
        return cls(Traced(module, *rest), options)


class Part:
    """A part of a graph as a model: a function of its inputs that are not constant.

    Attributes
    ----------
    places : list[int]
        Positions of these inputs among all.
    """

    def __init__(self, graph: fx.Graph, constants: Mapping[fx.Node, Any], options: Mapping[str, Any]) -> None:
        (output,) = (node for node in graph.nodes if node.op == "output")
        self._single = isinstance(output.args[0], fx.Node)
        nodes = [output.args[0]] if self._single else [*output.args[0]]
        outputs = {f"output_{at}": node for at, node in enumerate(nodes)}
        read = fx_reader.read(graph, constants, outputs, "graph", keep_order=True)
        self._model = compile(read.graph, **options)
        all_inputs = [node for node in graph.nodes if node.op == "placeholder"]
        names = [node.name for node in all_inputs]
        self.places = [names.index(port.name) for port in self._model.inputs]
        metas = (all_inputs[at].meta["val"] for at in self.places)
        self._inputs = [
            (port.name, read.orders.get(port.name), meta.dtype if isinstance(meta, torch.Tensor) else None)
            for port, meta in zip(self._model.inputs, metas, strict=True)
        ]
        self._outputs = [(name, _inverse(read.orders.get(name)), isinstance(node.meta["val"], torch.Tensor))
                         for name, node in outputs.items()]  # fmt: skip

    def __call__(self, *args: Any) -> Any:
        """Run the model; outputs are new tensors, in the order of memory that PyTorch's would have."""
        feed: dict[str, np.ndarray] = {}
        for (name, order, dtype), value in zip(self._inputs, args, strict=True):
            if dtype is None:
                feed[name] = np.array(int(value))
                continue
            value = value if value.dtype == dtype else value.to(dtype)
            feed[name] = writable_view(value if order is None else value.permute(order), name)
        arrays = self._model.run(feed)
        results = []
        for name, axes, is_tensor in self._outputs:
            array = arrays[name]
            result = torch.from_numpy(array) if array.dtype is FLOAT32 else like(_TENSOR, array)
            results.append(int(result) if not is_tensor else result if axes is None else result.permute(axes))
        return results[0] if self._single else tuple(results)


_TENSOR = torch.empty(0)


def _getter(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Make a function that returns the items of a sequence at some places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    if not places:
        return lambda items: ()
    (at,) = places
    return lambda items: (items[at],)


def _inverse(order: Sequence[int] | None) -> list[int] | None:
    return None if order is None else [order.index(axis) for axis in range(len(order))]


def eager_callable(captured: fx.GraphModule) -> Any:
    """The captured graph itself, as a callable that can be saved."""
    return _eager_callable(captured)


def copy_module(module: fx.GraphModule) -> fx.GraphModule:
    """Copy a graph, with the same attributes."""
    graph = fx.Graph()
    output = graph.graph_copy(module.graph, {})
    graph.output(output)
    made = fx.GraphModule(module, graph)
    made.meta = copy.copy(module.meta)
    return made
