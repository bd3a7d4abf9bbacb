"""Constants where they lie in a model's file: the same elements, given back when packed, read again for other sizes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from google.protobuf.message import DecodeError  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import numpy_helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.conv.choice.target import Target  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.memory.mapped_files import Mapped, backing, check_unchanged, contents, owned_copy, release_pages  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from cpuconv.network.running.building import build  # noqa: E402
from cpuconv.network.running.packed import Packed  # noqa: E402
from cpuconv.network.selection.layout import lay_out  # noqa: E402
from cpuconv.network.sizes.prepared import Rewriting, prepared  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from cpuconv.reading.tensors import LONG  # noqa: E402
from support.graphs import definition_of, made, parse  # noqa: E402

# Weights of a convolution with a normalization behind it and of a product; an operand of a sum; one of a Constant node
# that a reference reads (float64); and one of a branch.
TEXT = """g (float[N,20,6,6] x, bool b) => (float[N,40,6,6] y, float[N,1440] z, double[40,36] h, float[40,6,6] c)
    <float[40,20,3,3] w, float[40] scale, float[40] shift, float[40] mean, float[40] var, float[1440,1440] m,
     float[40,6,6] a, float[40,6,6] c>
    {
        n = Conv<pads = [1, 1, 1, 1]>(x, w)
        o = BatchNormalization(n, scale, shift, mean, var)
        y = Add(o, a)
        f = Flatten(y)
        z = MatMul(f, m)
        d = Cast<to = 11>(f)
        d1 = ReduceMean<keepdims = 0>(d)
        h = Mul(k, d1)
    }"""


def model(name: str = "maker") -> onnx.ModelProto:
    """The network; the length of the name shifts where its weights lie."""
    made, rng = parse(TEXT), np.random.default_rng(1)
    del made.graph.input[1]
    for info in made.graph.initializer:
        made.graph.initializer.remove(info)
    shapes = {"w": (40, 20, 3, 3), "m": (1440, 1440), "a": (40, 6, 6), "c": (40, 6, 6)}
    for each in [*shapes, "scale", "shift", "mean", "var"]:
        array = 1 + 0.1 * rng.random(shapes.get(each, (40,)), np.float32)
        made.graph.initializer.append(numpy_helper.from_array(array, each))
    constant = numpy_helper.from_array(rng.random((40, 36)), "value")
    node = onnx.helper.make_node("Constant", [], ["k"], value=constant)
    made.graph.node.insert(0, node)
    for each in [each for each in made.graph.value_info if each.name in shapes]:
        made.graph.value_info.remove(each)
    made.producer_name = name
    return made


def fed(images: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(2).normal(size=(images, 20, 6, 6)).astype(np.float32)}


def same(some: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert some.keys() == other.keys()
    for name, array in some.items():
        assert array.dtype == other[name].dtype
        np.testing.assert_array_equal(array, other[name])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "net.onnx"
    made.write_bytes(model().SerializeToString())
    return made


# --- reading --------------------------------------------------------------------------------------------------------


def test_every_source_has_the_same_constants(path: Path):
    expected = dict(read(model()).constants)
    for source in (path, path.read_bytes(), bytearray(path.read_bytes())):
        graph = read(source)
        same(dict(graph.constants), expected)
        assert all(not array.flags.writeable for array in graph.constants.values())
    lent = {name for name, array in read(path).constants.items() if isinstance(backing(array), Mapped)}
    assert lent == {"w", "m", "a", "c", "k"}


@pytest.mark.filterwarnings("ignore:if")
def test_constants_of_branches_are_read(tmp_path: Path):
    branch = parse("g () => (float[2000] t) { t = Identity(w) }", w=np.arange(2000, dtype=np.float32)).graph
    other = parse("g () => (float[2000] e) { e = Neg(x) }").graph
    outer = parse("g (float[2000] x, bool c) => (float[2000] y) { y = Identity(x) }")
    outer.graph.node[0].CopyFrom(onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other))
    file = tmp_path / "if.onnx"
    file.write_bytes(outer.SerializeToString())
    x = np.ones(2000, np.float32)
    got = [cpuconv.compile(file).run({"x": x, "c": np.array(taken)})["y"] for taken in (True, False)]
    np.testing.assert_array_equal(got, [np.arange(2000), -x])


def short() -> bytes:
    """A model of two long constants, one of them in a node."""
    many = np.arange(LONG // 4 + 6, dtype=np.float32)
    made = parse("g (float[1030] x) => (float[1030] y) { t = Add(x, w)  y = Mul(t, k) }", w=many)
    value = numpy_helper.from_array(many + 1, "value")
    made.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["k"], value=value))
    return made.SerializeToString()


BYTES, SHORT = model().SerializeToString(), short()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(SHORT) - 1), st.integers(0, 255)), max_size=2),
    st.one_of(st.just(len(SHORT)), st.integers(0, len(SHORT))),
)
def test_damaged_files_are_read_as_they_are_decoded_whole(changes, end):
    """Bytes are changed or cut off: an error or the same constants either way."""
    content = bytearray(SHORT)
    for place, value in changes:
        content[place] = value
    content = bytes(content[:end])
    try:
        expected = dict(read(onnx.ModelProto.FromString(content)).constants)
    except (SourceError, DecodeError):
        with pytest.raises(SourceError):
            read(content)
        return
    got = dict(read(content).constants)
    assert got.keys() == expected.keys()
    for name, array in got.items():
        assert array.dtype == expected[name].dtype and array.tobytes() == expected[name].tobytes()


def test_a_model_that_is_no_plain_file_is_refused_at_once(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        for use in (read, cpuconv.compile, cpuconv.load):
            with pytest.raises(SourceError):
                use(path)


# --- lent arrays ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", range(4))
def test_weights_at_any_byte_give_the_same_results(tmp_path: Path, shift: int):
    file = tmp_path / "net.onnx"
    file.write_bytes(model("n" * (1 + shift)).SerializeToString())
    lent = read(file).constants
    for shapes in (None, {"x": (1, 20, 6, 6)}):
        options = {"strategy": "heuristic", "input_shapes": shapes}
        same(cpuconv.compile(file, **options).run(fed()), cpuconv.compile(model(), **options).run(fed()))
    assert any(not array.flags.aligned for array in lent.values())


def test_pages_that_were_given_back_are_read_again(path: Path):
    graph = read(path)
    before = {name: array.copy() for name, array in graph.constants.items()}
    release_pages(graph.constants.values())
    same(dict(graph.constants), before)
    lent, kept = graph.constants["w"], owned_copy(graph.constants["w"])
    assert isinstance(backing(lent), Mapped) and backing(kept) is None and owned_copy(kept) is kept


def test_a_program_lets_go_of_constants(path: Path):
    graph, _, _ = prepared(read(path), {"x": (1, 20, 6, 6)}, Rewriting())
    network_plan = lay_out(graph, Target(current(), 1, "heuristic"))
    executable = build(network_plan, Target(current(), 1, "heuristic"), Packed())
    read_by_nodes = {name for each in network_plan.nodes for name in each.node.inputs}
    assert executable.raw_bytes > 8_000_000 and not read_by_nodes & network_plan.graph.constants.keys()
    assert all(backing(array) is None for array in executable.constants.values())


# --- other sizes ----------------------------------------------------------------------------------------------------


def test_a_file_that_changes_is_noticed_when_it_is_read_again(path: Path):
    open_sizes = cpuconv.compile(path, strategy="heuristic")
    expected = open_sizes.run(fed())
    with path.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"\0")
    os.utime(path, ns=(1, 1))
    same(open_sizes.run(fed()), expected)  # packed already
    with pytest.raises(SourceError, match=r"net\.onnx' was changed since the model was read: compile it again"):
        open_sizes.run(fed(2))
    with pytest.raises(SourceError):
        check_unchanged(definition_of(open_sizes).graph.constants.values())


@pytest.mark.parametrize("change", [Path.unlink, lambda path: os.replace(path.with_suffix(".new"), path)])
def test_a_file_may_be_removed_or_replaced(path: Path, change):
    path.with_suffix(".new").write_bytes(b"another one")
    open_sizes = cpuconv.compile(path, strategy="heuristic")
    open_sizes.run(fed())
    change(path)
    kept = cpuconv.compile(model(), strategy="heuristic")
    kept.run(fed())  # algorithms of the first size stay those of others
    same(open_sizes.run(fed(2)), kept.run(fed(2)))


def test_bytes_are_kept_for_other_sizes():
    open_sizes = cpuconv.compile(bytes(BYTES), strategy="heuristic")
    kept = cpuconv.compile(model(), strategy="heuristic")
    for images in (1, 2):
        same(open_sizes.run(fed(images)), kept.run(fed(images)))


def test_an_empty_file_is_read(tmp_path: Path):
    (tmp_path / "empty").touch()
    assert contents(tmp_path / "empty") == b""


def test_what_is_read_from_the_file_is_right(path: Path):
    expected = interpret(made(path, fed()), fed(), wide=True)
    got = cpuconv.compile(path).run(fed())
    for name, array in got.items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-4, atol=1e-4 * np.abs(expected[name]).max())
