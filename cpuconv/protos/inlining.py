"""A model's own functions, in the place of the nodes that call them.

Source: the section on functions of https://github.com/onnx/onnx/blob/main/docs/IR.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cpuconv.errors import SourceError
from cpuconv.protos.messages import NodeProto


def inlined(model: Any) -> Any:
    """The graph of a model without calls of its functions.

    Parameters
    ----------
    model : ModelProto
        Whose functions do not call themselves, and nest no deeper than the interpreter's stack allows.

    Raises
    ------
    SourceError
        A function that is called is written in another opset than the model.
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


class _Inlining:
    """The functions by what calls them, and the names that are taken."""

    def __init__(self, model: Any) -> None:
        self._functions = {(each.domain, each.name, each.overload): each for each in model.functions}
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._taken = set(_names(model.graph))

    def graph(self, graph: Any, names: Mapping[str, str], attributes: Mapping[str, Any] | None) -> Any:
        """A graph with its calls inlined; in the body of a function, of which `attributes` are given, all its values
        get new names, and what it reads of the graph around it those of `names`."""
        known = dict(names)
        if attributes is None:
            return graph.changed(node=[made for node in graph.node for made in self._node(node, known, None)])
        tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
        for entry in (*graph.input, *tensors):
            known[entry.name] = self._fresh(entry.name)
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

    def _node(self, node: Any, names: dict[str, str], attributes: Mapping[str, Any] | None) -> Iterator[Any]:
        """What becomes of a node; of one in a body, its outputs get new names unless `names` has them."""
        if attributes is not None:
            for name in node.output:
                if name and name not in names:
                    names[name] = self._fresh(name)
        made = node.changed(
            input=[names.get(name, name) for name in node.input],
            output=[names.get(name, name) for name in node.output],
            attribute=[self._attribute(each, names, attributes) for each in self._given(node, attributes)],
        )
        function = self._functions.get((node.domain, node.op_type, node.overload))
        if function is None:
            yield made
        else:
            yield from self._body(made, function)

    def _given(self, node: Any, attributes: Mapping[str, Any] | None) -> Iterator[Any]:
        """The attributes of a node, in the place of those that refer to its function's, these."""
        for each in node.attribute:
            if not each.ref_attr_name or attributes is None:
                yield each
            elif each.ref_attr_name in attributes:
                yield attributes[each.ref_attr_name].changed(name=each.name)

    def _attribute(self, attribute: Any, names: Mapping[str, str], attributes: Mapping[str, Any] | None) -> Any:
        changes: dict[str, Any] = {}
        if attribute.HasField("g"):
            changes["g"] = self.graph(attribute.g, names, attributes)
        if len(attribute.graphs):
            changes["graphs"] = [self.graph(each, names, attributes) for each in attribute.graphs]
        return attribute.changed(**changes) if changes else attribute

    def _body(self, call: Any, function: Any) -> Iterator[Any]:
        """The nodes of a function for a node that calls it."""
        self._check_opsets(function)
        given = [*call.input, *[""] * (len(function.input) - len(call.input))]
        names = {"": ""} | dict(zip(function.input, given, strict=False))
        for formal, actual in zip(function.output, call.output, strict=False):
            if formal in names:  # it gives what it is given
                yield NodeProto(op_type="Identity", input=[names[formal]], output=[actual], name=call.name)
            elif actual:
                names[formal] = actual
        attributes = {each.name: each for each in (*function.attribute_proto, *call.attribute)}
        for node in function.node:
            yield from self._node(node, names, attributes)

    def _check_opsets(self, function: Any) -> None:
        for entry in function.opset_import:
            ours = self._opsets.setdefault(entry.domain, entry.version)
            if ours != entry.version:
                raise SourceError(
                    f"the function {function.name!r} must be of opset {ours} of the domain {entry.domain!r}, as the"
                    f" model is, not {entry.version}."
                )

    def _fresh(self, name: str) -> str:
        """A name that the model does not use."""
        made, number = name, 0
        while made in self._taken:
            number += 1
            made = f"{name}.{number}"
        self._taken.add(made)
        return made
