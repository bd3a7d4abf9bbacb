"""What a model may read of files: plain ones of its own folder, wherever in it the tensor stands that names them."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.reading.foreign import Foreign  # noqa: E402
from support.damage.mutations import header_of, with_header  # noqa: E402

SECRET = np.arange(1, 7, dtype=np.float32) * 11
X = np.ones(6, np.float32)

Nodes = list[onnx.NodeProto]


def outside(name: str = "c", location: str = "secret.bin") -> TensorProto:
    """A tensor whose elements lie in a file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[6], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=tensor)


def looped(body: Nodes, tensors: list[TensorProto] = ()) -> Nodes:
    """y = x + c, once, in a loop."""
    ends = {"i": (TensorProto.INT64, []), "t": (TensorProto.BOOL, []), "v": (TensorProto.FLOAT, [6])}
    nodes = [helper.make_node("Identity", ["t"], ["again"]), *body, helper.make_node("Add", ["v", "c"], ["w"])]
    inputs = [helper.make_tensor_value_info(name, *stated) for name, stated in ends.items()]
    outputs = [
        helper.make_tensor_value_info("again", TensorProto.BOOL, []),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [6]),
    ]
    graph = helper.make_graph(nodes, "body", inputs, outputs, tensors)
    return [helper.make_node("Loop", ["m", "b", "x"], ["y"], body=graph)]


def branched(body: Nodes, tensors: list[TensorProto] = ()) -> Nodes:
    """y = x + c, in both branches of a condition."""
    output = helper.make_tensor_value_info("s", TensorProto.FLOAT, [6])
    graph = helper.make_graph([*body, helper.make_node("Add", ["x", "c"], ["s"])], "g", [], [output], tensors)
    return [helper.make_node("If", ["b"], ["y"], then_branch=graph, else_branch=graph)]


def in_both(tensor: TensorProto) -> Nodes:
    """A constant in a branch in a loop."""
    graph = helper.make_graph([constant(tensor)], "g", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, [6])])
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    return looped([yes, helper.make_node("If", ["yes"], ["c"], then_branch=graph, else_branch=graph)])


def encoded(tensor: TensorProto) -> Nodes:
    """y = x + c, as the numbers that an encoder of labels has for 0 to 5: an attribute of a node for the evaluator."""
    keys = numpy_helper.from_array(np.arange(6), "keys")
    node = helper.make_node(
        "LabelEncoder", ["places"], ["c"], domain="ai.onnx.ml", keys_tensor=keys, values_tensor=tensor,
        default_tensor=numpy_helper.from_array(np.zeros(1, np.float32), "other"),
    )  # fmt: skip
    return [
        helper.make_node("Constant", [], ["ramp"], value_floats=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        helper.make_node("Mul", ["x", "ramp"], ["product"]),
        helper.make_node("Cast", ["product"], ["places"], to=TensorProto.INT64),
        node,
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]


PLACES: dict[str, Callable[[TensorProto], Nodes]] = {
    "constant": lambda tensor: [constant(tensor), helper.make_node("Add", ["x", "c"], ["y"])],
    "constant in a loop": lambda tensor: looped([constant(tensor)]),
    "initializer in a loop": lambda tensor: looped([], [tensor]),
    "constant in a branch": lambda tensor: branched([constant(tensor)]),
    "initializer in a branch": lambda tensor: branched([], [tensor]),
    "constant in a branch in a loop": in_both,
    "attribute": encoded,
}


def model(nodes: Nodes, function: bool = False) -> onnx.ModelProto:
    """A network y = x + c of these nodes, or of a function that they are."""
    stated = {"x": (TensorProto.FLOAT, [6]), "m": (TensorProto.INT64, []), "b": (TensorProto.BOOL, [])}
    read = {name for node in nodes for name in node.input} | ({"x"} if nodes[0].op_type == "If" else set())
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in stated.items() if name in read]
    opsets = [helper.make_opsetid(*each) for each in (("", 17), ("ai.onnx.ml", 4), ("own", 1))]
    functions = []
    if function:
        names = [each.name for each in inputs]
        functions = [helper.make_function("own", "f", names, ["y"], nodes, opsets)]
        nodes = [helper.make_node("f", names, ["y"], domain="own")]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6])])
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


@pytest.fixture(params=[*PLACES, *(f"{name}, in a function" for name in PLACES)])
def network(request: pytest.FixtureRequest) -> onnx.ModelProto:
    name, _, function = request.param.partition(",")
    return model(PLACES[name](outside()), bool(function))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the file."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "secret.bin").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(folder)
    return folder


def compiled(source: object) -> cpuconv.Model:
    return cpuconv.compile(source, strategy="heuristic")


def result(compiled: cpuconv.Model) -> np.ndarray:
    feed = {"x": X, "m": np.array(1), "b": np.array(True)}
    return compiled.run({port.name: feed[port.name] for port in compiled.inputs})["y"]


@pytest.mark.filterwarnings("ignore::cpuconv.errors.CpuconvWarning")
def test_a_file_in_the_model_s_folder_is_read(network, here, monkeypatch, tmp_path):
    (here / "net.onnx").write_bytes(network.SerializeToString())
    monkeypatch.chdir(tmp_path)  # the model's folder counts, not the working directory
    made = compiled(here / "net.onnx")
    assert np.array_equal(result(made), X + SECRET)
    made.save(tmp_path / "net.cpuconv")
    os.remove(here / "secret.bin")
    assert np.array_equal(result(made), X + SECRET)
    assert np.array_equal(result(cpuconv.load(tmp_path / "net.cpuconv")), X + SECRET)


@pytest.mark.filterwarnings("ignore::cpuconv.errors.CpuconvWarning")
def test_a_file_in_the_working_directory_is_not_read(network, here, tmp_path):
    with pytest.raises(SourceError, match=r"the constant '\w*' .*: give the model by its path"):
        result(compiled(network.SerializeToString()))
    with pytest.raises(SourceError, match=r"the constant '\w*' .*: give the model by its path"):
        result(compiled(network))
    (tmp_path / "net.onnx").write_bytes(network.SerializeToString())
    with pytest.raises(
        SourceError, match=r"the constant '\w*' is stored in the file 'secret.bin', which cannot be read"
    ):
        result(compiled(tmp_path / "net.onnx"))


LOCATIONS = {
    "above": ("../secret.bin", "must be in the model's folder"),
    "absolute": ("/dev/zero", "must be in the model's folder"),
    "link": ("link.bin", "must be in the model's folder"),
    "circle": ("circle.bin", "cannot be read"),
    "long": ("x" * 5000, "cannot be read"),
    "NUL": ("a\0b", "cannot be read"),
    "pipe": ("pipe", "must be a plain file"),
    "folder": ("", "must be a plain file"),
    "short": ("short.bin", "must have 24 bytes of it from offset 0 on"),
}


@pytest.mark.filterwarnings("ignore::cpuconv.errors.CpuconvWarning")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("which", LOCATIONS)
def test_files_that_are_not_read(which, place, here):
    location, said = LOCATIONS[which]
    inside = here / "inside"
    inside.mkdir()
    (inside / "link.bin").symlink_to(here / "secret.bin")
    (inside / "circle.bin").symlink_to(inside / "circle.bin")
    (inside / "short.bin").write_bytes(bytes(23))
    if hasattr(os, "mkfifo"):
        os.mkfifo(inside / "pipe")
    elif which == "pipe":
        pytest.skip("there are no pipes")
    (inside / "net.onnx").write_bytes(model(PLACES[place](outside(location=location))).SerializeToString())
    with pytest.raises(SourceError, match=f"the constant '.*{said}"):
        result(compiled(inside / "net.onnx"))


@pytest.mark.parametrize(
    ("stated", "dims"),
    [({"offset": "-1"}, [6]), ({"offset": "1"}, [6]), ({"length": "20"}, [6]), ({"length": "9" * 30}, [6]),
     ({"offset": "x"}, [6]), ({"offset": "9" * 5000}, [6]), ({}, [7]), ({}, [-6]), ({}, [-2, -3]), ({}, [2**62])],
)  # fmt: skip
@pytest.mark.parametrize("place", ["constant", "constant in a loop"])
@pytest.mark.filterwarnings("ignore::cpuconv.errors.CpuconvWarning")
def test_parts_of_files_that_there_are_not(stated, dims, place, here):
    tensor = outside()
    tensor.dims[:] = dims
    for key, value in stated.items():
        tensor.external_data.add(key=key, value=value)
    (here / "net.onnx").write_bytes(model(PLACES[place](tensor)).SerializeToString())
    with pytest.raises(SourceError, match="the constant"):
        result(compiled(here / "net.onnx"))


def test_what_no_run_needs_is_not_read():
    """A function that nobody calls, and how the model was trained."""
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    function = model(PLACES["constant"](outside()), True).functions[0]
    made.functions.add().CopyFrom(function)
    made.training_info.add().initialization.node.append(constant(outside()))
    assert np.array_equal(result(compiled(made.SerializeToString())), X)


# --- saved models ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::cpuconv.errors.CpuconvWarning")
def test_a_saved_model_reads_no_file(here):
    """The text of a node in it names a file that is there, in the working directory and beside it."""
    compiled(model(encoded(numpy_helper.from_array(SECRET, "c")))).save(here / "net.cpuconv")
    data = (here / "net.cpuconv").read_bytes()
    header = header_of(data)
    nodes = [node for part in ("graph", "tail") for node in (header["programs"][0][part] or {"nodes": []})["nodes"]]
    (node,) = [node for node in nodes if node[5] is not None]
    proto = encoded(outside())[3].SerializeToString()
    node[5][0] = base64.b64encode(proto).decode()
    (here / "net.cpuconv").write_bytes(with_header(data, header))
    with pytest.raises(
        SourceError, match="net.cpuconv .*the constant 'c' must be stored in the node itself, not in a file"
    ):
        cpuconv.load(here / "net.cpuconv")


def test_the_evaluator_gets_no_node_with_a_file():
    node = looped([constant(outside())])[0]
    with pytest.raises(SourceError, match="the constant 'c' must be stored in the node itself, not in a file"):
        Foreign(node.SerializeToString(), {"": 17}, ("m", "b", "x"))
