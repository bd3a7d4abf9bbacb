"""A model's own functions, in the place of the nodes that call them.

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

MOST_COPIED = 1 << 27  # bytes, about, that calls of functions copy from their bodies
_OBJECT, _NUMBER = 128, 8  # bytes of a name or a message, and of a number
_VIEWED = 1 << 12  # bytes of raw data that are not copied


def inlined(model: Any) -> Any:
    """The graph of a model without calls of its functions.

    Parameters
    ----------
    model : ModelProto
        Whose functions do not call themselves, and nest no deeper than the interpreter's stack allows.

    Raises
    ------
    SourceError
        A function that is called is written in another opset than the model, or calls copy more than `MOST_COPIED`.
    """
    return _Inlining(model).graph(model.graph, {}, None) if model.functions else model.graph


def _names(graph: Any) -> Iterator[str]:
    """Of all values of a graph and those within."""
    for entry in (*graph.input, *graph.output, *graph.initializer):
        yield entry.name
    for node in graph.node:
        yield from (*node.input, *node.output)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _names(inner)


def _size(message: Any) -> int:
    """Bytes that a part of a message takes, about; graphs within it are counted by their nodes."""
    if isinstance(message, GraphProto):
        return 0
    if isinstance(message, Record):
        return _OBJECT + sum(map(_size, vars(message).values()))
    if isinstance(message, list) and message and isinstance(message[0], (Record, bytes, str)):
        return sum(map(_size, message))
    if isinstance(message, bytes):
        return _OBJECT + len(message)
    if isinstance(message, memoryview):  # of raw data: long ones are not copied
        return min(len(message), _VIEWED)
    return _NUMBER * len(message) if isinstance(message, (list, np.ndarray)) else _OBJECT


class _Defaults(NamedTuple):
    """What all calls of a function share: names for inputs that are left out, and attributes that are not given."""

    inputs: dict[str, str]
    attributes: dict[str, Any]


class _Inlining:
    """The functions by what calls them, and the names that are taken."""

    def __init__(self, model: Any) -> None:
        self._functions = {(each.domain, each.name, each.overload): each for each in model.functions}
        self._defaults: dict[int, _Defaults] = {}  # of functions by their identity
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._names = Names(_names(model.graph))
        self._copied = 0

    def graph(self, graph: Any, names: MutableMapping[str, str], attributes: Mapping[str, Any] | None) -> Any:
        """A graph with its calls inlined; in the body of a function, of which `attributes` are given, all its values
        get new names, and what it reads of the graph around it those of `names`."""
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
        """What becomes of a node; of one in a body, its outputs get new names unless `names` has them."""
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
        """Count what a part of a body is copied with: a small function may be called often."""
        self._copied += sum(map(_size, copied))
        if self._copied > MOST_COPIED:
            limit = f"no more than {MOST_COPIED / 1e6:.0f} MB from their bodies"
            raise SourceError(f"calls of functions must copy {limit}; the last of them copies {op}.")

    def _given(self, node: Any, attributes: Mapping[str, Any] | None) -> Iterator[Any]:
        """The attributes of a node, in the place of those that refer to its function's, these."""
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
        """The nodes of a function for a node that calls it."""
        defaults = self._defaults_of(function)
        names = ChainMap(dict(zip(function.input, call.input, strict=False)), defaults.inputs)
        for formal, actual in zip(function.output, call.output, strict=False):
            if formal in names:  # it gives what it is given
                yield NodeProto(op_type="Identity", input=[names[formal]], output=[actual], name=call.name)
            elif actual:
                names[formal] = actual
        attributes = ChainMap({each.name: each for each in call.attribute}, defaults.attributes)
        for node in function.node:
            yield from self._node(node, names, attributes)

    def _defaults_of(self, function: Any) -> _Defaults:
        """The defaults of a function, which must be of the model's opsets."""
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
