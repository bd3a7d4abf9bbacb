"""Merge equal constants, and nodes that compute the same.

Patterns: constants with the same type, shape and bits; nodes with the same operator, inputs and attributes, where
arrays are compared by their bits. Equal in every bit, as table operators are deterministic, except for random ones,
which are not merged.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cpuconv.graph.ir import Graph, Node, merged_parts
from cpuconv.graph.ops import draws
from cpuconv.graph.passes.rewriting import Pass, without
from cpuconv.symbolic.sizes import array_key, element_key

_SAMPLE = 16  # elements that distinguish most constants


def _digest(array: np.ndarray) -> Hashable:
    """Digest of the bits of an array: -0 differs from 0, and NaN equals NaN."""
    exact = array_key(array)
    return hashlib.blake2b(exact).digest() if isinstance(exact, bytes) else exact


def _constants(graph: Graph) -> Graph:
    """Replace equal constants by the first of them."""
    known = [
        ((array.dtype, array.shape, array_key(array.flat[:_SAMPLE])), name) for name, array in graph.constants.items()
    ]
    alike = Counter(sample for sample, _ in known)
    kept: dict[Hashable, str] = {}
    names: dict[str, str] = {}
    for sample, name in known:
        if alike[sample] == 1:
            continue
        same = kept.setdefault((sample, _digest(graph.constants[name])), name)
        if same != name and not graph.is_output(name):
            names[name] = same
    return replace(graph, nodes=tuple(node.reads(names) for node in graph.nodes)).live() if names else graph


def frozen(value: object) -> Hashable:
    """Convert an attribute to a hashable value."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, array_key(value))
    if isinstance(value, Mapping):
        return tuple((name, frozen(item)) for name, item in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    return element_key(value) if isinstance(value, Hashable) else id(value)


def _nodes(graph: Graph) -> Graph:
    """Remove all but the first of equal nodes."""
    known: dict[Hashable, Node] = {}
    names: dict[str, str] = {}
    equal: list[tuple[Node, Sequence[str]]] = []
    same: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.semantics is not None or draws(node):
            continue
        inputs = tuple(names.get(name, name) for name in node.inputs)
        first = known.setdefault((node.op, inputs, frozen(node.attributes), tuple(map(bool, node.outputs))), node)
        if first is not node and not (len(node.outputs) > 1 and any(map(graph.is_output, node.outputs))):
            equal.append((node, first.outputs))
            names.update(zip(node.outputs, first.outputs, strict=True))
            same.setdefault(id(first), [first]).append(node)
    if not equal:
        return graph
    kept = [replace(node, parts=merged_parts(same[id(node)])) if id(node) in same else node for node in graph.nodes]
    whole = replace(graph, nodes=tuple(kept))
    left = without(whole, equal)
    return graph if left is whole else left


# The rewrites before make most constants; those after it see which nodes are equal.
constants = Pass("equal_constants", __doc__, (_constants,), needs=("affine", "shuffles"))
nodes = Pass("common", __doc__, (_nodes,), needs=("equal_constants",))
