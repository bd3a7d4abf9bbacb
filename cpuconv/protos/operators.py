"""Definitions of ONNX operators: numbers of inputs and outputs, their element types, and attributes.

`operators.json` is written by `python -m bench.onnx_operators`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("operators.json")
UNBOUNDED = -1
TYPES = (
    "UNDEFINED", "FLOAT", "INT", "STRING", "TENSOR", "GRAPH", "FLOATS", "INTS", "STRINGS", "TENSORS", "GRAPHS",
    "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS",
)  # fmt: skip  # attribute types, by number


class Formal(NamedTuple):
    """The type of an input or output.

    Attributes
    ----------
    variable : str
        Name of the type variable; "" if no other type depends on it.
    types : int
        Bit mask of the allowed types, by their numbers.
    """

    variable: str
    types: int


class Definition(NamedTuple):
    """A version of an operator.

    Attributes
    ----------
    since : int
        The opset that introduced it.
    inputs, outputs : (int, int)
        Min. and max. numbers; `UNBOUNDED` for any number.
    options : str
        One letter per formal input: "r" required, "o" optional, "v" variadic.
    attributes : dict of str to int
        Attribute types by name.
    required : frozenset of str
        Required attributes.
    types, results : tuple of Formal
        Types of each formal input and output.
    """

    since: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    options: str
    attributes: dict[str, int]
    required: frozenset[str]
    types: tuple[Formal, ...]
    results: tuple[Formal, ...]


def domains() -> Collection[str]:
    """Return the domains whose operators ONNX defines; "" is its own."""
    return _table().keys()


def has(op: str, domain: str) -> bool:
    """Whether ONNX defines an operator; "" is its own domain."""
    return op in _table().get(domain, {})


@functools.lru_cache(maxsize=1024)
def definition(op: str, domain: str, opset: int) -> Definition:
    """Return an operator's version in an opset; the newest one if all are younger than the opset."""
    rows = _table()[domain][op]
    since, *bounds, options, text, formals = next((row for row in reversed(rows) if row[0] <= opset), rows[-1])
    attributes = {part.rstrip("0123456789")[:-1]: part for part in text.split()}
    types = {name: int(part[len(name) + 1 :]) for name, part in attributes.items()}
    required = frozenset(name for name, part in attributes.items() if part[len(name)] == "!")
    return Definition(
        since, (bounds[0], bounds[1]), (bounds[2], bounds[3]), options, types, required, *_formals(formals)
    )


def _formals(text: str) -> Iterator[tuple[Formal, ...]]:
    """Yield the types of the inputs, and of the outputs, in a row."""
    stated: dict[str, int] = {}
    for side in text.split(">"):
        pairs = [word.partition("=") for word in side.split()]
        stated |= {name: int(types, 16) for name, _, types in pairs if types and name}
        yield tuple(Formal(name, stated[name] if name else int(types, 16)) for name, _, types in pairs)


@functools.lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, list[list]]]:
    return json.loads(TABLE.read_text(encoding="utf-8"))
