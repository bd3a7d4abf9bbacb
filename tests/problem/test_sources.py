"""Problems from ONNX files, text files and strings."""

from __future__ import annotations

import builtins
import warnings
from pathlib import Path

import numpy as np
import pytest

from cpuconv.elements import S8, S32, U8
from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading.sources import load
from cpuconv.problem.types import Types
from support.models import conv
from support.running.processes import ROOT

CANONICAL = ROOT / "bench" / "shapes" / "canonical.txt"


@pytest.fixture
def write(tmp_path):
    """Write a text file and give its path."""

    def file(text: str, name: str = "shapes.txt") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return file


def test_canonical_file():
    entries = load(CANONICAL)
    assert len(entries) == sum(entry.count for entry in entries) == 45
    first = entries[0]
    assert (first.label, first.network, first.count) == ("resnet50:conv1", "resnet50", 1)
    assert first.problem == ConvProblem(1, 3, 224, 224, 64, 7, 7, (2, 2), (3, 2, 3, 2))


def test_text_file_with_comments_counts_and_settings(write):
    path = write(
        "# a comment\n\n  ic8ih9oc8kh3ph1   # the first\n"
        'ic8ih9oc8kh3ph1\nic8ih9oc8kh3ph1n"net#1:b*3"\nic8ih9oc8kh1 in=NHWC act=relu threads=1\n'
    )
    entries = load(path, layouts=("NCHW8c", "NCHW44"), threads=2)
    same = ConvProblem(1, 8, 9, 9, 8, 3, 3, pads=(1, 1, 1, 1), in_layout="NCHW8c", out_layout="NCHW4c", threads=2)
    assert entries[0] == (same, same.shape_key, 2, "shapes")
    assert entries[1] == (same, "net#1:b", 3, "net#1")
    stated = ConvProblem(1, 8, 9, 9, 8, 1, 1, in_layout="NHWC", out_layout="NCHW4c", activation="relu")
    assert [entry.problem for entry in entries[2:]] == [stated]


def test_one_string():
    ((problem, label, count, network),) = load('mb2ic4ih5oc6kh3n"net:a*2"', threads=2)
    assert (problem, label, count, network) == (ConvProblem(2, 4, 5, 5, 6, 3, 3, threads=2), "net:a", 2, "net")
    key = ConvProblem(1, 4, 5, 5, 6, 3, 3, in_layout="NHWC").key
    assert load(key, layouts=("NCHW", "NCHW"), threads=2)[0].problem.key == key


@pytest.mark.parametrize("source", ["missing.onnx", "no/such/file", "", "a b.txt", "x" * 5000 + ".txt", "nul\0.txt"])
def test_missing_file(source):
    with pytest.raises(SourceError, match="must be a file that exists or a problem string"):
        load(source)


def test_bad_string_says_why():
    with pytest.raises(SourceError, match="Argument 'w' must be weights whose kernel"):
        load("ic3ih8oc4kh9")
    with pytest.raises(SourceError, match="must be one of NCHW"):
        load("ic3ih8oc4kh3", layouts=("NCHW", "CHWN"))


def test_bad_line_is_numbered(write):
    with pytest.raises(
        SourceError, match=r"shapes.txt, line 3: Argument 'problem' must be a problem string that states kh"
    ):
        load(write("# fine\nic3ih8oc4kh3\nic3ih8oc4\n"))


def test_files_without_problems(write, tmp_path):
    with pytest.raises(SourceError, match="has no 2-D convolution"):
        load(write("# nothing\n"))
    with pytest.raises(SourceError, match="is a folder"):
        load(tmp_path)
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(SourceError, match="must be an .onnx file or a text file"):
        load(binary)


# --- ONNX --------------------------------------------------------------------------------------------------------


def test_resnet50_whose_weights_are_made_by_nodes():
    onnx = pytest.importorskip("onnx")
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    entries = load(path, threads=2)
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
    entries = load(save(nodes, {"x": (2, 8, 9, 10)}, {"w": (6, 8, 3, 2), "g": (4, 2, 1, 1)}), ("NHWC", "NCHW"))
    first = ConvProblem(2, 8, 9, 10, 6, 3, 2, (2, 1), (1, 2, 0, 1), (1, 2), in_layout="NHWC")
    grouped = ConvProblem(2, 8, 9, 10, 4, 1, 1, groups=4, in_layout="NHWC")
    assert entries == [(first, "first", 2, "net"), (grouped, "c", 1, "net")]


@pytest.mark.parametrize(
    "auto_pad, pads", [("SAME_UPPER", (0, 1, 0, 1)), ("SAME_LOWER", (1, 0, 1, 0)), ("VALID", (0, 0, 0, 0))]
)
def test_auto_pad(save, auto_pad, pads):
    path = save([conv(auto_pad=auto_pad, strides=[2, 2])], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3)})
    assert load(path)[0].problem == ConvProblem(1, 3, 8, 8, 4, 3, 3, (2, 2), pads)


def test_open_batch_is_1_even_through_a_reshape(save):
    from onnx import helper

    shape = helper.make_node("Constant", [], ["shape"], value_ints=[-1, 2, 8, 8])
    nodes = [conv(y="a"), shape, helper.make_node("Reshape", ["a", "shape"], ["b"]), conv("b", "v", "y")]
    path = save(nodes, {"x": ("batch", 3, 8, 8)}, {"w": (4, 3, 1, 1), "v": (4, 2, 3, 3)})
    assert [entry.problem.n for entry in load(path)] == [1, 2]


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
    found = [(entry.problem.weight_shape, entry.count) for entry in load(path)]
    assert found == [((4, 3, 3, 3), 1), ((5, 3, 2, 2), 2), ((6, 3, 1, 1), 1)]


def test_large_weights_and_external_data_are_not_needed(save, tmp_path):
    onnx = pytest.importorskip("onnx")
    path = save([conv()], {"x": (1, 64, 8, 8)}, {"w": (64, 64, 3, 3)})
    expected = load(path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin")
    (tmp_path / "weights.bin").unlink()
    assert load(path) == expected


def test_other_ranks_are_left_out_with_a_warning(save):
    nodes = [conv("t", "v", "a", name="line"), conv("u", "f", "b", name="volume"), conv(name="plane")]
    inputs = {"t": (1, 3, 8), "u": (1, 3, 8, 8, 8), "x": (1, 3, 8, 8)}
    weights = {"v": (4, 3, 3), "f": (4, 3, 1, 1, 1), "w": (4, 3, 3, 3)}
    with pytest.warns(CpuconvWarning, match=r"not 2-D are left out: line \(1-D\), volume \(3-D\)\.") as caught:
        entries = load(save(nodes, inputs, weights))
    assert [entry.label for entry in entries] == ["plane"] and caught[0].filename == __file__
    with pytest.warns(CpuconvWarning), pytest.raises(SourceError, match="has no 2-D convolution"):
        load(save(nodes[:1], inputs, weights))


def test_unknown_shapes_name_the_node(save):
    path = save([conv(name="stem")], {"x": ("n", 3, "height", "width")}, {"w": (4, 3, 3, 3)})
    with pytest.raises(SourceError, match=r"net.onnx: Conv node 'stem': the shape of its input 'x' is 1x3x\?x\?; give"):
        load(path)
    path = save([conv(name="stem")], {"x": (1, 3, 8, 8), "w": (4, 3, None, 3)})
    with pytest.raises(SourceError, match=r"Conv node 'stem': the shape of its input 'w' is 4x3x\?x3"):
        load(path)


def test_impossible_conv_names_the_node(save):
    path = save([conv(name="stem", pads=[-1, 0, 0, 0])], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3)})
    with pytest.raises(SourceError, match="Conv node 'stem': Argument 'padding' must be at least 0"):
        load(path)


def test_files_that_are_no_models(write, save):
    with pytest.raises(SourceError, match="must be an ONNX file that can be read"):
        load(write("not a model", "text.onnx"))
    from onnx import helper

    path = save([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 3)})
    with pytest.raises(SourceError, match="has no 2-D convolution"):
        load(path)


def test_onnx_missing_says_what_to_install(save, monkeypatch):
    path = save([conv()], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3)})
    original = builtins.__import__

    def without_onnx(name, *arguments, **keywords):
        if name.partition(".")[0] == "onnx":
            raise ImportError(name)
        return original(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(SourceError, match=r"pip install 'cpuconv\[onnx\]'"):
        load(path)


def test_no_warning_without_cause(save):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(save([conv()], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3)}))


def test_types_where_a_line_states_none(tmp_path: Path) -> None:
    source = tmp_path / "list.txt"
    source.write_text("ic8ih4oc8kh1\nic8ih4oc8kh1 --dt=bf16:bf16:f32\n")
    plain, stated = load(str(source), types=Types.parse("u8"))
    assert plain.problem.types == Types(U8, S8, S32, U8) and str(stated.problem.types) == "bf16:bf16:f32"
