"""See that a node is written as its operator's definition says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.protos.elements import DTYPES, NUMBERS
from cpuconv.protos.operators import TYPES, UNBOUNDED, Formal, definition

_NEWEST = 1 << 30  # an opset that has the newest definition of each operator
_STATED = ("to", "dtype", "output_dtype", "output_datatype")  # attributes that state the type of the output


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


def check_types(
    node: Any, domain: str, opset: int, label: str, dtype_of: Callable[[str], np.dtype | None]
) -> dict[str, np.dtype]:
    """See that the inputs of a node are of types that its operator's definition allows, or the newest one.

    Exporters write bfloat16 in opsets whose operators did not have it yet.

    Parameters
    ----------
    node, domain, opset, label
        As for `check`, which the node has passed.
    dtype_of : callable
        The type of a value by its name; None where it is not known, or none of numbers.

    Returns
    -------
    dict of str to numpy.dtype
        The types of the outputs by name, as far as they follow.

    Raises
    ------
    SourceError
        One is not; the message names it.
    """
    known, newest = (definition(node.op_type, domain, each) for each in (opset, _NEWEST))
    bound: dict[str, tuple[str, np.dtype, str]] = {}
    later = _formals(node.input, newest.types or known.types)
    for (name, formal), (_, wider) in zip(_formals(node.input, known.types), later, strict=True):
        dtype, types = dtype_of(name) if name else None, formal.types | wider.types
        if dtype is None or dtype not in NUMBERS:
            continue
        if not types >> NUMBERS[dtype] & 1:
            raise SourceError(f"{label}: the input {name!r} must be {_names(types)}, not {dtype}.")
        first, same, then = bound.setdefault(formal.variable, (name, dtype, wider.variable))
        if formal.variable and same != dtype and then == wider.variable:
            raise SourceError(f"{label}: the input {name!r} must be {same} as {first!r} is, not {dtype}.")
    stated = [DTYPES[each.i] for each in node.attribute if each.name in _STATED and each.i in DTYPES]
    results = {}
    for name, formal in _formals(node.output, known.results):
        read = [bound[formal.variable][1]] if formal.variable in bound and formal.variable else []
        only = [dtype for number, dtype in DTYPES.items() if formal.types == 1 << number]
        if follows := read or only or stated:
            results[name] = follows[0]
    return results


def _formals(names: Sequence[str], formals: Sequence[Formal]) -> Iterator[tuple[str, Formal]]:
    """Inputs or outputs with their formal ones, of which the last may stand for several."""
    return ((name, formals[min(at, len(formals) - 1)]) for at, name in enumerate(names) if formals)


def _names(types: int) -> str:
    """The types of a formal input, in words."""
    words = [str(dtype) for number, dtype in DTYPES.items() if types >> number & 1] or ["no tensor of numbers"]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


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
