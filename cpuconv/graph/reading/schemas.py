"""What ONNX's own definitions say of a node: which inputs and outputs it has, and the types of its attributes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cpuconv.errors import SourceError

if TYPE_CHECKING:
    import onnx


def check(node: onnx.NodeProto, domain: str, opset: int, label: str) -> None:
    """See that a node is written as its operator's definition says.

    Parameters
    ----------
    node : onnx.NodeProto
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
    schema = _schema(node.op_type, domain, opset)
    _check_names(node.input, schema.inputs, schema.min_input, schema.max_input, f"{label}: inputs")
    _check_names(node.output, schema.outputs, schema.min_output, schema.max_output, f"{label}: outputs")
    known = schema.attributes
    for attribute in node.attribute:
        stated = known.get(attribute.name)
        if stated is None:
            raise SourceError(f"{label}: {node.op_type!r} has no attribute {attribute.name!r}.")
        if int(stated.type) != attribute.type:
            raise SourceError(f"{label}: the attribute {attribute.name!r} must be of type {stated.type.name}.")
    missing = {name for name, stated in known.items() if stated.required} - {item.name for item in node.attribute}
    if missing:
        raise SourceError(f"{label}: the attribute {min(missing)!r} is missing.")


def _check_names(names: Sequence[str], formal: Sequence[Any], fewest: int, most: int, label: str) -> None:
    from onnx.defs import OpSchema

    count = len(names)
    while count and not names[count - 1]:  # left out, at the end
        count -= 1
    if not fewest <= count <= most:
        wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
        raise SourceError(f"{label} must be {wanted} in number, not {count}.")
    for at, name in enumerate(names[:count]):
        option = formal[min(at, len(formal) - 1)].option
        if not name and option != OpSchema.FormalParameterOption.Optional and label.endswith("inputs"):
            raise SourceError(f"{label} must not leave out number {at}.")


@lru_cache(maxsize=1024)
def _schema(op: str, domain: str, opset: int) -> Any:
    """The definition in force in an opset; of an operator that is younger, the newest."""
    import onnx

    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return onnx.defs.get_schema(op, domain)
