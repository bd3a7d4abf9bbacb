"""The convolutions that a model states: axes that it leaves open, and shapes as the package onnx infers them."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from autotune.workload import Reading
from autotune.workload import SourceError as Unloadable
from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.network.problems.original import original_problems
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.workload import workload
from support.models import conv

OPEN = {"image": ("batch", 3, "height", "width")}
WEIGHTS = {"w": (4, 3, 3, 3), "v": (2, 4, 1, 1)}


@pytest.fixture
def model(save) -> str:
    return save([conv("image", "w", "t"), conv("t", "v", "y")], OPEN, WEIGHTS)


def test_batches_are_networks_of_their_own(save) -> None:
    path = save([conv("image")], {"image": ("batch", 3, 8, 8)}, {"w": WEIGHTS["w"]})
    assert [(entry.problem.n, entry.network) for entry in original_problems(path)] == [(1, "net")]
    entries = original_problems(path, batches=(1, 8, 32))
    assert [(entry.problem.n, entry.network) for entry in entries] == [
        (1, "net, batch 1"),
        (8, "net, batch 8"),
        (32, "net, batch 32"),
    ]


def test_stated_shapes_fill_open_axes(model: str) -> None:
    with pytest.raises(SourceError, match=r"\(--input NAME=1x3x224x224\)"):
        original_problems(model)
    first, second = original_problems(model, inputs={"image": (2, 3, 10, 12)})
    assert (first.problem.in_shape, second.problem.in_shape) == ((2, 3, 10, 12), (2, 4, 8, 10))


def test_axes_of_one_name_are_of_one_size(save) -> None:
    inputs = {"a": ("n", 3, "h", "w"), "b": ("n", 3, "h", "w")}
    path = save([conv("a", y="s"), conv("b", y="t")], inputs, {"w": WEIGHTS["w"]})
    entries = original_problems(path, inputs={"a": (4, 3, 6, 7)})
    assert [(entry.problem.in_shape, entry.count) for entry in entries] == [((4, 3, 6, 7), 2)]
    with pytest.raises(SourceError, match=r"a shape that fits float32\[n,3,h,w\] where .*, not \(4, 3, 6, 8\)"):
        original_problems(path, inputs={"a": (4, 3, 6, 7), "b": (4, 3, 6, 8)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": {"picture": (1, 3, 8, 8)}}, r"must be shapes of inputs \(image\), not one of 'picture'"),
        ({"inputs": {"image": (1, 3, 8)}}, r"fits float32\[batch,3,height,width\], not \(1, 3, 8\)"),
        ({"inputs": {"image": (1, 4, 8, 8)}}, r"fits float32\[batch,3,height,width\], not \(1, 4, 8, 8\)"),
        ({"inputs": {"image": (1, 3, 8, 8)}, "batches": (2,)}, "'batches' must be left out: the model fixes its batch"),
    ],
)
def test_what_does_not_fit_is_refused(model: str, options: dict, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        original_problems(model, **options)
    with pytest.raises(Unloadable, match=said):
        workload.load(model, Reading(("NCHW", "NCHW"), **options))


def test_models_are_timed_with_cold_weights_and_problems_with_warm_ones(model: str, tmp_path: Path) -> None:
    inputs = {"image": (1, 3, 8, 8)}
    assert {each.weights for each in workload.load(model, Reading(inputs=inputs))} == {"cold"}
    lines = tmp_path / "lines.txt"
    lines.write_text("mb1ic3ih8oc4oh6kh3 threads=2\nmb1ic3ih8oc4oh8kh1")
    loaded = workload.load(str(lines))
    assert [(each.weights, each.threads) for each in loaded] == [("warm", 2), ("warm", 1)]
    (single,) = workload.load("mb1ic3ih8oc4oh8kh1", Reading(inputs=inputs, batches=(4,)))
    assert single.key == loaded[1].key


# --- what is read of a model ---------------------------------------------------------------------------------------


def test_resnet50_whose_weights_are_made_by_nodes():
    onnx = pytest.importorskip("onnx")
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    entries = original_problems(path, threads=2)
    assert sum(entry.count for entry in entries) == 53
    assert len({entry.problem for entry in entries}) == len(entries) == 23  # 1 + 4 + three stages of 6
    assert {entry.network for entry in entries} == {"light_resnet50"}
    assert entries[0].problem == ConvProblem(1, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3), threads=2)
    gflop = sum(entry.problem.flops * entry.count for entry in entries) / 1e9
    assert 8.1 < gflop < 8.3  # 4.1 billion multiply-adds: the variant whose stride lies in the 3x3


def test_attributes_and_merging(save):
    nodes = [
        conv("x", "w", "a", name="first", pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]),
        conv("x", "w", "b", name="again", pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2], kernel_shape=[3, 2]),
        conv("x", "g", "c", group=4),
    ]
    entries = original_problems(
        save(nodes, {"x": (2, 8, 9, 10)}, {"w": (6, 8, 3, 2), "g": (4, 2, 1, 1)}), ("NHWC", "NCHW")
    )
    first = ConvProblem(2, 8, 9, 10, 6, 3, 2, (2, 1), (1, 2, 0, 1), (1, 2), in_layout="NHWC")
    grouped = ConvProblem(2, 8, 9, 10, 4, 1, 1, groups=4, in_layout="NHWC")
    assert entries == [(first, "first", 2, "net"), (grouped, "c", 1, "net")]


@pytest.mark.parametrize(
    "auto_pad, pads", [("SAME_UPPER", (0, 1, 0, 1)), ("SAME_LOWER", (1, 0, 1, 0)), ("VALID", (0, 0, 0, 0))]
)
def test_auto_pad(save, auto_pad, pads):
    path = save([conv(auto_pad=auto_pad, strides=[2, 2])], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3)})
    assert original_problems(path)[0].problem == ConvProblem(1, 3, 8, 8, 4, 3, 3, (2, 2), pads)


def test_open_batch_is_1_even_through_a_reshape(save):
    from onnx import helper

    shape = helper.make_node("Constant", [], ["shape"], value_ints=[-1, 2, 8, 8])
    nodes = [conv(y="a"), shape, helper.make_node("Reshape", ["a", "shape"], ["b"]), conv("b", "v", "y")]
    path = save(nodes, {"x": ("batch", 3, 8, 8)}, {"w": (4, 3, 1, 1), "v": (4, 2, 3, 3)})
    assert [entry.problem.n for entry in original_problems(path)] == [1, 2]


def test_weights_from_a_constant_node_a_subgraph_and_a_function(save):
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32))
    constant = helper.make_node("Constant", [], ["w"], value=weight)
    branch = helper.make_graph(
        [conv("x", "v", "inner", name="nested")],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    condition = helper.make_node("Constant", [], ["condition"], value=numpy_helper.from_array(np.array(True)))
    choose = helper.make_node("If", ["condition"], ["z"], then_branch=branch, else_branch=branch)
    block = helper.make_function(
        "own", "Block", ["p", "q"], ["o"], [conv("p", "q", "o")], [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Block", ["x", "u"], ["y"], domain="own")
    path = save(
        [constant, conv(y="a"), condition, choose, call],
        {"x": (1, 3, 8, 8)},
        {"v": (5, 3, 2, 2), "u": (6, 3, 1, 1)},
        functions=[block],
    )
    found = [(entry.problem.weight_shape, entry.count) for entry in original_problems(path)]
    assert found == [((4, 3, 3, 3), 1), ((5, 3, 2, 2), 2), ((6, 3, 1, 1), 1)]


def test_large_weights_and_external_data_are_not_needed(save, tmp_path):
    onnx = pytest.importorskip("onnx")
    path = save([conv()], {"x": (1, 64, 8, 8)}, {"w": (64, 64, 3, 3)})
    expected = original_problems(path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin")
    (tmp_path / "weights.bin").unlink()
    assert original_problems(path) == expected


def test_other_ranks_are_left_out_with_a_warning(save):
    nodes = [conv("t", "v", "a", name="line"), conv("u", "f", "b", name="volume"), conv(name="plane")]
    inputs = {"t": (1, 3, 8), "u": (1, 3, 8, 8, 8), "x": (1, 3, 8, 8)}
    weights = {"v": (4, 3, 3), "f": (4, 3, 1, 1, 1), "w": (4, 3, 3, 3)}
    with pytest.warns(CpuconvWarning, match=r"not 2-D are left out: line \(1-D\), volume \(3-D\)\.") as caught:
        entries = original_problems(save(nodes, inputs, weights))
    assert [entry.label for entry in entries] == ["plane"] and caught[0].filename == __file__
    with pytest.warns(CpuconvWarning), pytest.raises(SourceError, match="has no 2-D convolution"):
        original_problems(save(nodes[:1], inputs, weights))


def test_unknown_shapes_name_the_node(save):
    path = save([conv(name="stem")], {"x": ("n", 3, "height", "width")}, {"w": (4, 3, 3, 3)})
    with pytest.raises(
        SourceError, match=r"net.onnx': Conv node 'stem': the shape of its input 'x' is \?x3x\?x\?; give"
    ):
        original_problems(path)
    path = save([conv(name="stem")], {"x": (1, 3, 8, 8), "w": (4, 3, None, 3)})
    with pytest.raises(SourceError, match=r"Conv node 'stem': the shape of its input 'w' is 4x3x\?x3"):
        original_problems(path)


def test_impossible_conv_names_the_node(save):
    path = save([conv(name="stem", pads=[-1, 0, 0, 0])], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3)})
    with pytest.raises(SourceError, match="Conv node 'stem': Argument 'padding' must be at least 0"):
        original_problems(path)


def test_files_that_are_no_models(save, tmp_path):
    text = tmp_path / "text.onnx"
    text.write_text("not a model")
    with pytest.raises(SourceError, match="must be a whole ONNX model"):
        original_problems(text)
    with pytest.raises(SourceError, match="must be an ONNX file that can be read"):
        original_problems(tmp_path / "missing.onnx")
    from onnx import helper

    path = save([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 3)})
    with pytest.raises(SourceError, match="has no 2-D convolution"):
        original_problems(path)


def test_no_warning_without_cause(save):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert original_problems(save([conv()], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3)}))


LIGHT = ["densenet121", "inception_v1", "resnet50", "shufflenet", "squeezenet", "vgg19", "zfnet512"]


@pytest.mark.parametrize("name", LIGHT)
def test_shapes_are_those_that_the_package_infers(name):
    onnx = pytest.importorskip("onnx")
    path = Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"
    graph = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True).graph
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "Conv"]
    wanted = Counter((shapes[node.input[0]], shapes[node.input[1]], shapes[node.output[0]]) for node in nodes)
    found = Counter()
    for problem, _, count, _ in original_problems(path):
        weights = (problem.k, problem.c // problem.groups, problem.r, problem.s)
        found[problem.in_shape, weights, problem.out_shape] += count
    assert found == wanted and sum(wanted.values()) > 4


def test_nodes_in_the_body_of_a_loop(save):
    from onnx import TensorProto, helper

    flag = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    state, turn = (helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (
        ("state", TensorProto.FLOAT, [1, 3, 8, 8]), ("turn", TensorProto.INT64, []))
    )  # fmt: skip
    ends = [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("next", 1, None)]
    nodes = [helper.make_node("Identity", ["go"], ["on"]), conv("state", "v", "next", name="within", pads=[1, 1, 1, 1])]
    body = helper.make_graph(nodes, "body", [turn, flag, state], ends)
    path = save([helper.make_node("Loop", ["", "", "x"], ["y"], body=body)], {"x": (1, 3, 8, 8)}, {"v": (3, 3, 3, 3)})
    (entry,) = original_problems(path)
    assert (entry.label, entry.problem.in_shape, entry.problem.pads) == ("within", (1, 3, 8, 8), (1, 1, 1, 1))


def test_the_package_is_not_needed(save, monkeypatch):
    path = save([conv()], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3)})
    monkeypatch.setitem(sys.modules, "onnx", None)
    (problem,) = workload.load(path, Reading(("NHWC", "NHWC"), threads=1, types="bf16"))
    assert "bf16" in problem.key and "in=NHWC" in problem.key
