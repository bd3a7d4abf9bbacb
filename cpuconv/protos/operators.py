"""What ONNX says of its operators: how many inputs and outputs each has, and the types of its attributes.

`operators.json` is written by `python -m bench.onnx_operators`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("operators.json")
UNBOUNDED = -1
TYPES = (
    "UNDEFINED", "FLOAT", "INT", "STRING", "TENSOR", "GRAPH", "FLOATS", "INTS", "STRINGS", "TENSORS", "GRAPHS",
    "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS",
)  # fmt: skip  # of attributes, by number


class Definition(NamedTuple):
    """A version of an operator.

    Attributes
    ----------
    since : int
        The opset that it came with.
    inputs, outputs : (int, int)
        Fewest and most; `UNBOUNDED` for any number.
    options : str
        A letter for each formal input: "r" that must be there, "o" that may be left out, "v" any number of them.
    attributes : dict of str to int
        Their types by name.
    required : frozenset of str
        Attributes that must be there.
    """

    since: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    options: str
    attributes: dict[str, int]
    required: frozenset[str]


def domains() -> Collection[str]:
    """The domains whose operators ONNX defines; "" is its own."""
    return _table().keys()


def has(op: str, domain: str) -> bool:
    """Whether ONNX defines an operator; "" is its own domain."""
    return op in _table().get(domain, {})


@functools.lru_cache(maxsize=1024)
def definition(op: str, domain: str, opset: int) -> Definition:
    """The version of an operator that is in force in an opset; of one that is younger, the newest."""
    rows = _table()[domain][op]
    since, *bounds, options, text = next((row for row in reversed(rows) if row[0] <= opset), rows[-1])
    attributes = {part.rstrip("0123456789")[:-1]: part for part in text.split()}
    types = {name: int(part[len(name) + 1 :]) for name, part in attributes.items()}
    required = frozenset(name for name, part in attributes.items() if part[len(name)] == "!")
    return Definition(since, (bounds[0], bounds[1]), (bounds[2], bounds[3]), options, types, required)


@functools.lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, list[list]]]:
    return json.loads(TABLE.read_text(encoding="utf-8"))
