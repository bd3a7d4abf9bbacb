"""The table of operators: what the package onnx says."""

from __future__ import annotations

import json

import pytest

onnx = pytest.importorskip("onnx")

from bench import onnx_operators  # noqa: E402
from cpuconv.protos import operators  # noqa: E402
from cpuconv.protos.operators import UNBOUNDED, definition  # noqa: E402

TABLE = json.loads(operators.TABLE.read_text(encoding="utf-8"))


def test_the_table_is_what_the_package_says() -> None:
    made = onnx_operators.made()
    assert sum(map(len, made.values())) > 200
    for domain, named in made.items():
        for name, rows in named.items():
            known = {row[0]: row for row in TABLE[domain].get(name, [])}
            newest = max(row[0] for each in TABLE[domain].values() for row in each)
            for row in rows:
                assert known.get(row[0]) == row or row[0] > newest  # of a package that is younger than the table


def test_the_script_writes_the_table(tmp_path) -> None:
    target = tmp_path / "operators.json"
    assert onnx_operators.main(["--file", str(target)]) == 0
    assert json.loads(target.read_text(encoding="utf-8")) == onnx_operators.made()


def test_the_version_in_force() -> None:
    for domain, named in TABLE.items():
        for name in named:
            for opset in (1, 6, 7, 9, 11, 13, 17, 18, 21, 22):
                try:
                    schema = onnx.defs.get_schema(name, opset, domain)
                except onnx.defs.SchemaError:
                    schema = onnx.defs.get_schema(name, domain)
                known = definition(name, domain, opset)
                assert known.since == schema.since_version
                assert known.attributes == {key: int(value.type) for key, value in schema.attributes.items()}
                assert known.required == {key for key, value in schema.attributes.items() if value.required}
                assert known.inputs[0] == schema.min_input and known.outputs[0] == schema.min_output
                most = known.inputs[1], known.outputs[1]
                theirs = (schema.max_input, schema.max_output)
                assert most == tuple(UNBOUNDED if bound == 2**31 - 1 else bound for bound in theirs)


def test_the_types_of_inputs_and_outputs() -> None:
    every = {f"tensor({name.lower()})": number for name, number in onnx.TensorProto.DataType.items() if number}
    for domain, named in TABLE.items():
        for name in named:
            schema, known = onnx.defs.get_schema(name, domain), definition(name, domain, 1000)
            for formals, types in ((schema.inputs, known.types), (schema.outputs, known.results)):
                assert len(formals) == len(types)
                for formal, (variable, numbers) in zip(formals, types, strict=True):
                    assert {
                        text for text, number in every.items() if numbers >> number & 1
                    } == formal.types & every.keys()
                    assert bool(numbers & 1) == any(not text.startswith("tensor") for text in formal.types)
                    assert variable in ("", formal.type_str)


def test_types_of_attributes_have_the_package_s_names() -> None:
    known = dict(onnx.AttributeProto.AttributeType.items())
    assert {name: number for number, name in enumerate(operators.TYPES)} == known


def test_operators_that_there_are() -> None:
    assert operators.has("Conv", "") and operators.has("Scaler", "ai.onnx.ml")
    assert not operators.has("Conv", "ai.onnx.ml") and not operators.has("Conv", "com.example")
