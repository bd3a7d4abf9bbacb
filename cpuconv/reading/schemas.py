"""Checks of nodes against the definitions of their operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.protos.elements import DTYPES, NUMBERS
from cpuconv.protos.operators import TYPES, UNBOUNDED, Formal, definition

_NEWEST = 1 << 30  # greater than all opsets: selects the newest definition
_STATED = ("to", "dtype", "output_dtype", "output_datatype")  # attributes with the type of the output


def check(node: Any, domain: str, opset: int, label: str) -> None:
    """Check that a node fits its operator's definition.

    Parameters
    ----------
    node : NodeProto
    domain : str
        Domain of the operator, which ONNX must define.
    opset : int
        Opset of the model in that domain.
    label : str
        Name of the node in messages.

    Raises
    ------
    SourceError
        It has too few or too many inputs or outputs, lacks a required input or attribute, or has an unknown attribute
        or one of a wrong type.
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
    """Check that input types are allowed by the operator's definition, or by the newest one.

    Exporters write bfloat16 in opsets whose operators do not support it yet.

    Parameters
    ----------
    node, domain, opset, label
        As for `check`, which must have passed.
    dtype_of : callable
        Maps a value's name to its dtype; None if unknown or not numeric.

    Returns
    -------
    dict of str to numpy.dtype
        Types of the outputs by name, as far as they can be inferred.

    Raises
    ------
    SourceError
        A type is not allowed; the message has the input's name.
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
    """Pair inputs or outputs with their definitions; the last definition may be variadic."""
    return ((name, formals[min(at, len(formals) - 1)]) for at, name in enumerate(names) if formals)


def _names(types: int) -> str:
    """Text of the types that a definition allows."""
    words = [str(dtype) for number, dtype in DTYPES.items() if types >> number & 1] or ["no tensor of numbers"]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _check_count(names: Sequence[str], bounds: tuple[int, int], label: str, options: str = "") -> int:
    """Check the number of inputs or outputs; trailing absent ones only count if optional and below the minimum."""
    fewest, most = bounds
    count = len(names)
    while count and not names[count - 1] and not (count <= fewest and options[count - 1 : count] == "o"):
        count -= 1
    if count < fewest or count > most != UNBOUNDED:
        wanted = str(fewest) if fewest == most else f"{fewest} or more" if most == UNBOUNDED else f"{fewest} to {most}"
        raise SourceError(f"{label} must be {wanted} in number, not {count}.")
    return count
