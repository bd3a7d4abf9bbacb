"""Saved models that ask for too much: refused before memory is taken for it."""

from __future__ import annotations

import base64
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.network.saved import container, header_limits  # noqa: E402
from cpuconv.protos.limits import MAX_DEPTH  # noqa: E402
from support.damage.mutations import header_of, with_header  # noqa: E402
from support.graphs import parse  # noqa: E402

SIZE = 2_000_000


def with_text(path: Path, text: str) -> Path:
    """A file of a header alone, checksums right."""
    content = text.encode()
    begin = container.rounded(container.START + len(content))
    prefix = container.PREFIX.pack(container.MAGIC, container.FORMAT, len(content), begin)
    start = prefix + container.digest(prefix, content) + content
    path.write_bytes(start + bytes(begin - len(start)))
    return path


def refused(path: Path) -> tuple[str, int]:
    """What the error says, and the most bytes that were taken until then."""
    tracemalloc.start()
    try:
        with pytest.raises(SourceError) as caught:
            cpuconv.load(path)
        return str(caught.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unit", ["[],", "{},", '{"":0},', "[0],", "[[[],[]],{}],"])
@pytest.mark.parametrize("field", ["blocks", "graph", "programs", "packed"])
def test_a_header_of_many_small_objects_is_refused_before_they_are_made(tmp_path, unit, field):
    others = "".join(f'"{name}":{{}},' for name in ("name", "inputs", "outputs", "settings", "made"))
    said, peak = refused(with_text(tmp_path / "m.cpuconv", f'{{{others}"{field}":[{unit * (SIZE // len(unit))}0]}}'))
    assert said.startswith("m.cpuconv is damaged: its header would take ") and peak < 3 * SIZE


@pytest.mark.parametrize(
    "unit", ["1000,", "0,", "1.5,", '"ab",', '[0,64,"a"],', '"\\u00e9",', '{"a long name":"text"},']
)
def test_any_header_takes_memory_as_its_size(tmp_path, unit):
    said, peak = refused(with_text(tmp_path / "m.cpuconv", f'{{"blocks":[{unit * (SIZE // len(unit))}0]}}'))
    assert "m.cpuconv is damaged: a block at" in said and len(said) < 200 and peak < 20 * SIZE


@pytest.mark.parametrize("depth", [header_limits.MAX_LEVELS, 900, SIZE // 2])
def test_a_header_nests_no_deeper_than_graphs_do(tmp_path, depth):
    many = max(1, SIZE // depth // 2)
    text = '{"blocks":[' + ("[" * depth + "]" * depth + ",") * many + "0]}"
    said, peak = refused(with_text(tmp_path / "m.cpuconv", text))
    assert said == f"m.cpuconv is damaged: its header nests deeper than {header_limits.MAX_LEVELS} levels."
    assert peak < 3 * SIZE


def test_brackets_and_quotes_in_texts_are_no_levels():
    text = json.dumps({"[" * 300: ['"' * 301, "\\" * 302, '\\"[' * 303, '{"' * 304, "\\\\[" * 305, "é\n[" * 306]})
    header_limits.check_text(text.encode(), "m")
    with pytest.raises(SourceError, match="nests deeper"):
        header_limits.check_text((text[:-1] + ',"x":' + "[" * 300 + "]" * 300 + "}").encode(), "m")


@pytest.mark.parametrize("shift", range(4))
def test_pieces_of_a_text_are_seen_as_one(shift):
    """Texts, levels and quotes that begin in one piece and end in another."""
    text = (" " * shift + json.dumps([['a"b[', "\\"], {"[": [[]]}])).encode()
    for piece in range(1, 40):
        header_limits.check_text(text, "m", 4, piece)
        with pytest.raises(SourceError, match="nests deeper than 3"):
            header_limits.check_text(text, "m", 3, piece)


def test_a_header_has_a_largest_size_at_saving_and_loading(tmp_path, monkeypatch):
    model = cpuconv.compile(parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"))
    model.save(tmp_path / "m.cpuconv")
    monkeypatch.setattr(container, "MAX_HEADER_BYTES", 100)
    with pytest.raises(SourceError, match=r"m.cpuconv is damaged: its header takes \d+ bytes, more than 100"):
        cpuconv.load(tmp_path / "m.cpuconv")
    with pytest.raises(SourceError, match=r"n.cpuconv cannot be saved: its header takes \d+ bytes, more than 100"):
        model.save(tmp_path / "n.cpuconv")
    assert not (tmp_path / "n.cpuconv").exists()


def test_a_header_must_fit_into_memory(tmp_path, monkeypatch):
    model = cpuconv.compile(parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"))
    model.save(tmp_path / "m.cpuconv")
    monkeypatch.setattr(
        header_limits, "check_bytes", lambda size, what: (_ for _ in ()).throw(SourceError(f"{what} {size}"))
    )
    with pytest.raises(SourceError, match=r"m.cpuconv: its header \d+"):
        cpuconv.load(tmp_path / "m.cpuconv")


# --- nodes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", ["2,3", "N,3"])
def test_a_saved_model_has_a_bound_on_nodes(tmp_path, monkeypatch, sizes):
    body = " ".join(f"v{at + 1} = CumSum(v{at}, axis)" for at in range(4))
    text = f"g (float[{sizes}] v0) => (float[] v4) <int64 axis = {{0}}> {{ {body} }}"
    cpuconv.compile(parse(text)).save(tmp_path / "m.cpuconv")
    monkeypatch.setattr(header_limits, "MAX_NODES", 4)
    assert cpuconv.load(tmp_path / "m.cpuconv").inputs
    monkeypatch.setattr(header_limits, "MAX_NODES", 3)
    with pytest.raises(SourceError, match="m.cpuconv cannot be read: a graph must have no more than 3 nodes"):
        cpuconv.load(tmp_path / "m.cpuconv")


def _graph(nodes: list[object]) -> dict[str, object]:
    return {"name": "", "inputs": [], "outputs": [], "nodes": nodes, "constants": {}, "values": {}}


def test_nodes_within_nodes_count_and_have_a_deepest_level():
    graph = _graph([])
    for _ in range(MAX_DEPTH):
        graph = _graph([["If", [], [], {"graph": 0, "a": {"tuple": [[{"graph": graph}]]}}, "", None]])
    header_limits.check_nodes(graph)
    with pytest.raises(SourceError, match="nodes must not nest deeper than 16 levels"):
        header_limits.check_nodes(_graph([["If", [], [], {"a": {"graph": graph}}, "", None]]))
    with pytest.raises(SourceError, match="a graph must have no more than 15 nodes"):
        header_limits.check_nodes(graph, MAX_DEPTH - 1)


def _nested(depth: int) -> onnx.NodeProto:
    """Conditions within conditions, in one branch of each."""
    output = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])]
    node = helper.make_node("Neg", ["x"], ["y"])
    last = helper.make_graph([node], "g", [], output)
    for _ in range(depth):
        graph = helper.make_graph([node], "g", [], output)
        node = helper.make_node("If", ["b"], ["y"], then_branch=graph, else_branch=last)
    return node


@pytest.mark.filterwarnings("ignore::cpuconv.errors.CpuconvWarning")
def test_nodes_that_the_evaluator_runs_have_the_bounds_of_those_that_are_read(tmp_path):
    inputs, outputs = ([helper.make_tensor_value_info(name, 1, [3])] for name in "xy")
    labels = {"keys_floats": [1.0], "values_floats": [-1.0]}
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **labels)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 4)]
    made = cpuconv.compile(
        helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9)
    )
    x = np.ones(3, np.float32)
    assert np.array_equal(made.run({"x": x})["y"], -x)
    made.save(tmp_path / "m.cpuconv")
    data = (tmp_path / "m.cpuconv").read_bytes()
    header = header_of(data)
    graphs = [header["graph"], *(program[part] for program in header["programs"] for part in ("graph", "tail"))]
    foreign = [node for graph in graphs if graph for node in graph["nodes"] if node[5] is not None]
    assert foreign
    for node in foreign:
        node[5][0] = base64.b64encode(_nested(MAX_DEPTH + 1).SerializeToString()).decode()
    (tmp_path / "m.cpuconv").write_bytes(with_header(data, header))
    with pytest.raises(SourceError, match="m.cpuconv cannot be read: nodes must not nest deeper than 16 levels"):
        cpuconv.load(tmp_path / "m.cpuconv").run({"x": x})
