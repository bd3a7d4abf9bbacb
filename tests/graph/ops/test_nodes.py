"""ONNX's backend suite: the node tests of every operator of the graph's table, and the models from PyTorch."""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import numpy_helper  # noqa: E402

from cpuconv.graph.ir import Graph  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from cpuconv.network.sizes.specialise import specialise  # noqa: E402
from cpuconv.reading.onnx_reader import OLDEST, read  # noqa: E402

OPS = sorted({*filter(onnx.defs.has, TABLE), "Upsample", "Constant"} - {"Bernoulli"})
DATA = Path(onnx.__file__).parent / "backend/test/data"
_NUMBERS = {*map(np.dtype, ("?", *"bhiqBHIQ", "f2", "f4", "f8"))}

# Tests that do not pass, each with its reason.
LEFT_OUT = {
    "test_resize_downsample_scales_linear_align_corners": "the length is a whole number, as in ONNX Runtime",
    "test_maxunpool_export_with_output_shape": "indices are those of the output, as in ONNX Runtime",
    "test_resize_downsample_scales_cubic_align_corners": "the length is a whole number, as in ONNX Runtime",
}


@functools.cache
def _cases() -> dict[str, list]:
    """The cases by operator: those of one node on tensors of numbers."""
    from onnx.backend.test.case.node import collect_testcases

    cases: dict[str, list] = {op: [] for op in OPS}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = collect_testcases()
    for case in found:
        nodes, (version,) = case.model.graph.node, [e.version for e in case.model.opset_import if not e.domain] or [0]
        tensors = [_array(item) for part in case.data_sets[0] for item in part]
        plain = all(array is not None and array.dtype in _NUMBERS for array in tensors)
        if len(nodes) == 1 and nodes[0].op_type in cases and version >= OLDEST and plain:
            cases[nodes[0].op_type].append(case)
    return cases


def _array(item: object) -> np.ndarray | None:
    """A tensor of a test; None if it is none."""
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, (np.ndarray, np.generic)) else None


def _with_constants(graph: Graph, arrays: dict[str, np.ndarray]) -> Graph:
    """The graph with those inputs as constants that sizes depend on."""
    read_by_rules = {
        node.inputs[at]
        for node in graph.nodes
        if node.semantics is None
        for at in TABLE[node.op].parameters
        if at < len(node.inputs)
    }
    constants = {name: arrays[name] for name in graph.inputs if name in read_by_rules}
    inputs = tuple(name for name in graph.inputs if name not in constants)
    return replace(graph, inputs=inputs, constants={**graph.constants, **constants})


def _same(got: np.ndarray, expected: np.ndarray, rtol: float = 1e-3, atol: float = 1e-7) -> bool:
    """Whether a result is what the suite asks for."""
    alike = (got.dtype, got.shape) == (expected.dtype, expected.shape)
    return alike and np.allclose(got, expected, rtol, atol, equal_nan=True)


@pytest.mark.parametrize("op", OPS)
def test_nodes(op):
    failed = []
    for case in _cases()[op]:
        inputs, outputs = case.data_sets[0]
        arrays = dict(zip([info.name for info in case.model.graph.input], map(_array, inputs), strict=True))
        graph = _with_constants(read(case.model), arrays)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = specialise(graph, {name: arrays[name].shape for name in graph.inputs})
        results = interpret(graph, {name: arrays[name] for name in graph.inputs})
        for got, expected in zip(results.values(), map(_array, outputs), strict=True):
            if not _same(got, expected, case.rtol, case.atol):
                failed.append(case.name)
    assert [name for name in dict.fromkeys(failed) if name not in LEFT_OUT] == []


def test_what_is_left_out_exists():
    assert LEFT_OUT.keys() <= {case.name for cases in _cases().values() for case in cases}


def _stored(folder: Path, kind: str) -> list[np.ndarray]:
    """The inputs or outputs of a stored test, in order."""
    paths = sorted(folder.glob(f"test_data_set_0/{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[-1]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in paths]


@pytest.mark.parametrize("kind", ["pytorch-converted", "pytorch-operator"])
def test_models_from_pytorch(kind):
    folders = sorted(path.parent for path in DATA.glob(f"{kind}/*/model.onnx"))
    assert folders
    for folder in folders:
        graph = read(folder / "model.onnx")
        feed = dict(zip(graph.inputs, _stored(folder, "input"), strict=False))
        results = interpret(specialise(graph, strict=True), feed)
        for got, expected in zip(results.values(), _stored(folder, "output"), strict=True):
            assert _same(got, expected, atol=1e-6), folder.name
