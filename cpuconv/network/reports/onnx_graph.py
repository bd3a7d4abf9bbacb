"""An explained network as an ONNX file for viewers such as Netron: operators after rewriting, without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpuconv.network.ports import Port
from cpuconv.network.reports.explain import Explanation, OperatorRow
from cpuconv.protos.messages import MESSAGES
from cpuconv.protos.wire import encode

DOMAIN = "cpuconv"  # of all operators, as rewritten ones have other inputs than ONNX's of the same name
_IR_VERSION = 10
_STRING = 3  # AttributeProto.AttributeType.STRING


def onnx_graph(explanation: Explanation, inputs: Sequence[Port], outputs: Sequence[Port]) -> bytes:
    """Return an ONNX model of the operators that run, whose attributes describe how each is computed.

    It is made to be looked at; no engine can run it.
    """
    graph = _make(
        "GraphProto",
        name=explanation.name,
        node=[_node(row) for row in explanation.operators],
        input=[_info(port) for port in inputs],
        output=[_info(port) for port in outputs],
    )
    opset = _make("OperatorSetIdProto", domain=DOMAIN, version=1)
    return encode(
        _make("ModelProto", ir_version=_IR_VERSION, producer_name="cpuconv", opset_import=[opset], graph=graph)
    )


def _make(message: str, **fields: Any) -> Any:
    return MESSAGES[message](**fields)


def _node(row: OperatorRow) -> Any:
    shape = "x".join(map(str, row.shape))
    details: Mapping[str, str] = {
        "algorithm": row.algorithm, "decided_by": row.decided_by, "layouts": row.layouts, "shape": shape,
        "types": row.types,
    }  # fmt: skip
    attributes = [
        _make("AttributeProto", name=name, type=_STRING, s=text.encode()) for name, text in details.items() if text
    ]
    read, written = list(row.inputs), list(row.outputs)
    return _make(
        "NodeProto", name=row.name, op_type=row.op, domain=DOMAIN, input=read, output=written, attribute=attributes
    )


def _info(port: Port) -> Any:
    return _make("ValueInfoProto", name=port.name)
