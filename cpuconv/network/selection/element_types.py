"""Element types that a node of a layout plan reads, multiplies and writes, as text for reports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np

from cpuconv.elements import OF_DTYPE
from cpuconv.graph.ir import Value
from cpuconv.kernels.binding.tensor_view import stored_as
from cpuconv.network.selection.layout import NodePlan
from cpuconv.problem.types import Types

CONVERTS = " -> "


def types_of(node_plan: NodePlan, value: Callable[[str], Value]) -> str:
    """The types of a node, by names of `cpuconv.elements`.

    Multiplications by solvers are written as ``x:w:y``, as in benchdnn, other nodes as ``inputs -> outputs``; equal
    types are written once. Constants that become part of the kernel are omitted.

    Parameters
    ----------
    node_plan : NodePlan
    value : callable
        Returns the known type and shape of a value, by name.
    """
    detail = None if node_plan.offer is None else node_plan.offer.detail
    problem = getattr(detail, "problem", None)
    multiplied = getattr(detail, "multiplied", "")
    if problem is not None:
        if not multiplied and (choice := getattr(detail, "choice", None)) is not None:
            multiplied = choice.candidate.solver.product_label(choice.candidate.params)
        text = _shortest(problem.types)
        return f"{text}, {multiplied}" if multiplied else text
    if multiplied:
        return str(multiplied)
    node = node_plan.node
    read = _named(
        (node_plan.reads(at), value(name).dtype)
        for at, name in enumerate(node.inputs)
        if name and value(name).array is None
    )
    written = _named((node_plan.writes(at), value(name).dtype) for at, name in enumerate(node.outputs) if name)
    return written if read in ("", written) else f"{read}{CONVERTS}{written}"


@functools.lru_cache(maxsize=64)
def _shortest(types: Types) -> str:
    words = str(types).split(":")
    return words[0] if len({*words}) == 1 else ":".join(words)


def _named(operands: Iterable[tuple[str, np.dtype | None]]) -> str:
    """The stored types of operands with these forms, without duplicates."""
    stored = (stored_as(form, dtype) for form, dtype in operands if form and dtype is not None)
    return ", ".join(dict.fromkeys(OF_DTYPE[dtype].name if dtype in OF_DTYPE else dtype.name for dtype in stored))
