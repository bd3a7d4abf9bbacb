"""Inlining of a model's own functions into the nodes that call them.

Source: the section on functions of https://github.com/onnx/onnx/blob/main/docs/IR.md
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.names import Names
from cpuconv.protos.messages import GraphProto, NodeProto, Record

MAX_COPIED = 1 << 27  # limit of the bytes (approximate) that inlining copies from function bodies
_OBJECT, _NUMBER = 128, 8  # approximate bytes of a name or message, and of a number
_VIEWED = 1 << 12  # raw data of more bytes are not copied


def inlined(model: Any) -> Any:
    """Return the graph of a model with all calls of its functions inlined.

    Parameters
    ----------
    model : ModelProto
        Its functions are not recursive, and nest no deeper than the interpreter's stack allows.

    Raises
    ------
    SourceError
        The opset of a called function differs from the model's, or calls copy more than `MAX_COPIED`.
    """
    return _Inlining(model).graph(model.graph, {}, None) if model.functions else model.graph


def _names(graph: Any) -> Iterator[str]:
    """Yield the names of all values in a graph and its subgraphs."""
    for entry in (*graph.input, *graph.output, *graph.initializer):
        yield entry.name
    for node in graph.node:
        yield from (*node.input, *node.output)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _names(inner)


def _size(message: Any) -> int:
    """Return the approximate bytes of a part of a message; 0 for subgraphs, whose nodes are counted separately."""
    if isinstance(message, GraphProto):
        return 0
    if isinstance(message, Record):
        return _OBJECT + sum(map(_size, vars(message).values()))
    if isinstance(message, list) and message and isinstance(message[0], (Record, bytes, str)):
        return sum(map(_size, message))
    if isinstance(message, bytes):
        return _OBJECT + len(message)
    if isinstance(message, memoryview):  # raw data: long ones are not copied
        return min(len(message), _VIEWED)
    return _NUMBER * len(message) if isinstance(message, (list, np.ndarray)) else _OBJECT


class _Defaults(NamedTuple):
    """Data shared by all calls of a function: names for omitted inputs, and default attributes."""

    inputs: dict[str, str]
    attributes: dict[str, Any]


class _Inlining:
    """The functions by operator, and the names in use."""

    def __init__(self, model: Any) -> None:
        self._functions = {(each.domain, each.name, each.overload): each for each in model.functions}
        self._defaults: dict[int, _Defaults] = {}  # by `id` of the function
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._names = Names(_names(model.graph))
        self._copied = 0

    def graph(self, graph: Any, names: MutableMapping[str, str], attributes: Mapping[str, Any] | None) -> Any:
        """Return a graph with its calls inlined.

        In the body of a function with these `attributes`, all values of the graph get new names; its references to
        outer values use `names`.
        """
        known = ChainMap({}, names)
        if attributes is None:
            return graph.changed(node=[made for node in graph.node for made in self._node(node, known, None)])
        tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
        self._count("a graph", [graph.input, graph.output, graph.value_info, tensors])
        for entry in (*graph.input, *tensors):
            known[entry.name] = self._names.fresh(entry.name)
        nodes = [made for node in graph.node for made in self._node(node, known, attributes)]

        def renamed(entries: Any) -> list[Any]:
            return [entry.changed(name=known.get(entry.name, entry.name)) for entry in entries]

        return graph.changed(
            node=nodes,
            input=renamed(graph.input),
            output=renamed(graph.output),
            initializer=renamed(graph.initializer),
            value_info=renamed(graph.value_info),
            sparse_initializer=[
                sparse.changed(values=renamed([sparse.values])[0]) for sparse in graph.sparse_initializer
            ],
        )

    def _node(self, node: Any, names: MutableMapping[str, str], attributes: Mapping[str, Any] | None) -> Iterator[Any]:
        """Yield the inlined form of a node; in a function body, its outputs get new names unless `names` has them."""
        given = list(self._given(node, attributes))
        if attributes is not None:
            self._count(f"a {node.op_type}", [node.input, node.output, *given])
            for name in node.output:
                if name and name not in names:
                    names[name] = self._names.fresh(name)
        made = node.changed(
            input=[names.get(name, name) for name in node.input],
            output=[names.get(name, name) for name in node.output],
            attribute=[self._attribute(each, names, attributes) for each in given],
        )
        function = self._functions.get((node.domain, node.op_type, node.overload))
        if function is None:
            yield made
        else:
            yield from self._body(made, function)

    def _count(self, op: str, copied: Sequence[Any]) -> None:
        """Add the size of a copied part of a body, and check the limit: a small function may be called often."""
        self._copied += sum(map(_size, copied))
        if self._copied > MAX_COPIED:
            limit = f"no more than {MAX_COPIED / 1e6:.0f} MB from their bodies"
            raise SourceError(f"calls of functions must copy {limit}; the last of them copies {op}.")

    def _given(self, node: Any, attributes: Mapping[str, Any] | None) -> Iterator[Any]:
        """Yield a node's attributes, with references to its function's attributes resolved."""
        for each in node.attribute:
            if not each.ref_attr_name or attributes is None:
                yield each
            elif each.ref_attr_name in attributes:
                yield attributes[each.ref_attr_name].changed(name=each.name)

    def _attribute(self, attribute: Any, names: MutableMapping[str, str], attributes: Mapping[str, Any] | None) -> Any:
        changes: dict[str, Any] = {}
        if attribute.HasField("g"):
            changes["g"] = self.graph(attribute.g, names, attributes)
        if len(attribute.graphs):
            changes["graphs"] = [self.graph(each, names, attributes) for each in attribute.graphs]
        return attribute.changed(**changes) if changes else attribute

    def _body(self, call: Any, function: Any) -> Iterator[Any]:
        """Yield the nodes of a function's body for a node that calls it."""
        defaults = self._defaults_of(function)
        names = ChainMap(dict(zip(function.input, call.input, strict=False)), defaults.inputs)
        for formal, actual in zip(function.output, call.output, strict=False):
            if formal in names:  # an output that is also an input
                yield NodeProto(op_type="Identity", input=[names[formal]], output=[actual], name=call.name)
            elif actual:
                names[formal] = actual
        attributes = ChainMap({each.name: each for each in call.attribute}, defaults.attributes)
        for node in function.node:
            yield from self._node(node, names, attributes)

    def _defaults_of(self, function: Any) -> _Defaults:
        """Return the defaults of a function, after checking that its opsets are the model's."""
        known = self._defaults.get(id(function))
        if known is None:
            self._check_opsets(function)
            known = _Defaults(
                dict.fromkeys(("", *function.input), ""), {each.name: each for each in function.attribute_proto}
            )
            self._defaults[id(function)] = known
        return known

    def _check_opsets(self, function: Any) -> None:
        for entry in function.opset_import:
            ours = self._opsets.setdefault(entry.domain, entry.version)
            if ours != entry.version:
                raise SourceError(
                    f"the function {function.name!r} must be of opset {ours} of the domain {entry.domain!r}, as the"
                    f" model is, not {entry.version}."
                )
