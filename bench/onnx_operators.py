"""Write ONNX's operator definitions as the table used to check models: `python -m bench.onnx_operators`.

Run it when the package onnx has a new opset; tests compare the table with the package. The table has only names,
counts, options and types, for every version of every operator; `cpuconv.protos.operators` documents its format.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx

from baselib.files import write_whole
from cpuconv.protos.operators import TABLE, UNBOUNDED

_OPTIONS = {"Single": "r", "Optional": "o", "Variadic": "v"}
_ANY = 2**31 - 1  # the package's value for an unbounded number of inputs or outputs


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table; return 0."""
    parser = argparse.ArgumentParser(prog="bench.onnx_operators", description=__doc__)
    parser.add_argument("--file", type=Path, default=TABLE, help="output file (the package's own)")
    write_whole({parser.parse_args(argv).file: text(made())})
    return 0


def made() -> dict[str, dict[str, list[Any]]]:
    """Return the versions of each operator, oldest first, by domain and name; see `cpuconv.protos.operators`."""
    found: dict[str, dict[str, list[Any]]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault(schema.domain, {}).setdefault(schema.name, []).append(row(schema))
    return {
        domain: {name: sorted(rows, key=lambda each: each[0]) for name, rows in sorted(operators.items())}
        for domain, operators in sorted(found.items())
    }


def row(schema: Any) -> list[Any]:
    """Return the row of one version of an operator, an `onnx.defs.OpSchema` (whose stubs lack enumerations)."""
    attributes = [
        f"{name}{'!' if attribute.required else '='}{int(attribute.type)}"
        for name, attribute in sorted(schema.attributes.items())
    ]
    bounds = schema.min_input, schema.max_input, schema.min_output, schema.max_output
    return [
        schema.since_version,
        *(UNBOUNDED if bound == _ANY else bound for bound in bounds),
        "".join(_OPTIONS[formal.option.name] for formal in schema.inputs),
        " ".join(attributes),
        _types(schema),
    ]


def _types(schema: Any) -> str:
    """Encode the types of inputs, then outputs: a type variable, and at its first use its allowed types as a
    hexadecimal sum of 2 to the power of their numbers."""
    stated: set[str] = set()
    sides = []
    for formals in (schema.inputs, schema.outputs):
        words = []
        for formal in formals:
            name = formal.type_str if formal.is_homogeneous and "(" not in formal.type_str else ""
            words.append(name if name in stated else f"{name}={sum(1 << each for each in _numbers(formal.types)):x}")
            stated.add(name or words[-1])
        sides.append(" ".join(words))
    return " > ".join(sides)


def _numbers(types: Iterable[str]) -> set[int]:
    """Return the numbers of types such as ``tensor(float)``; 0 for types that are not tensors."""
    found = (re.fullmatch(r"tensor\((\w+)\)", each) for each in types)
    return {0 if each is None else onnx.TensorProto.DataType.Value(each[1].upper()) for each in found}


def text(table: dict[str, dict[str, list[Any]]]) -> str:
    """Return JSON with a line for each operator."""
    domains = []
    for domain, operators in table.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(rows)}" for name, rows in operators.items()]
        domains.append(f" {json.dumps(domain)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(domains) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
