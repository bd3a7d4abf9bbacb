"""See that a node is written as its operator's definition says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.errors import SourceError
from cpuconv.protos.operators import TYPES, UNBOUNDED, definition


def check(node: Any, domain: str, opset: int, label: str) -> None:
    """See that a node is written as its operator's definition says.

    Parameters
    ----------
    node : NodeProto
    domain : str
        Of its operator, one that ONNX defines.
    opset : int
        Of the model, in that domain.
    label : str
        How messages call the node.

    Raises
    ------
    SourceError
        It has too few or too many inputs or outputs, leaves out one that must be there, or has an attribute of a wrong
        type, one that there is not, or lacks one.
    """
    known = definition(node.op_type, domain, opset)
    count = _check_count(node.input, known.inputs, f"{label}: inputs", known.options)
    _check_count(node.output, known.outputs, f"{label}: outputs")
    for at, name in enumerate(node.input[:count]):
        if not name and known.options[min(at, len(known.options) - 1)] != "o":
            raise SourceError(f"{label}: inputs must not leave out number {at}.")
    for attribute in node.attribute:
        stated = known.attributes.get(attribute.name)
        if stated is None:
            raise SourceError(f"{label}: {node.op_type!r} has no attribute {attribute.name!r}.")
        if stated != attribute.type:
            raise SourceError(f"{label}: the attribute {attribute.name!r} must be of type {TYPES[stated]}.")
    missing = known.required - {attribute.name for attribute in node.attribute}
    if missing:
        raise SourceError(f"{label}: the attribute {min(missing)!r} is missing.")


def _check_count(names: Sequence[str], bounds: tuple[int, int], label: str, options: str = "") -> int:
    """How many there are, without those at the end that are left out, which may be among the fewest."""
    fewest, most = bounds
    count = len(names)
    while count and not names[count - 1] and not (count <= fewest and options[count - 1 : count] == "o"):
        count -= 1
    if count < fewest or count > most != UNBOUNDED:
        wanted = str(fewest) if fewest == most else f"{fewest} or more" if most == UNBOUNDED else f"{fewest} to {most}"
        raise SourceError(f"{label} must be {wanted} in number, not {count}.")
    return count
