"""Models from anywhere: what asks for too much or is damaged gives one clear error, and takes no memory or time."""

from __future__ import annotations

import gc
import io
import os
import sys
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError  # noqa: E402
from cpuconv.memory import free_memory, mapped_files  # noqa: E402
from cpuconv.network import folding  # noqa: E402
from cpuconv.protos import limits  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.damage.damageable import damageable, looping, nested  # noqa: E402
from support.damage.onnx_mutations import mutated  # noqa: E402
from support.graphs import parse  # noqa: E402

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
IMAGE = "float[1,1,8,8] x"
WIDE = "kernel_shape = [100000, 100000], pads = [50000, 50000, 50000, 50000]"


@pytest.fixture
def most(monkeypatch):
    """Set the bounds of `limits`, `free_memory` and `folding` on nodes and steps, and free memory."""
    names = {"nodes": [(limits, "MAX_NODES")], "steps": [(folding, "MAX_STEPS")]}
    names["free"] = [(free_memory, "free_bytes"), (folding, "free_bytes")]

    def bounded(**bounds):
        for name, bound in bounds.items():
            for module, attribute in names[name]:
                monkeypatch.setattr(module, attribute, bound)

    return bounded


def _compiled(source: object) -> cpuconv.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cpuconv.compile(source, strategy="heuristic")


# --- memory and time ------------------------------------------------------------------------------------------------

TOO_LARGE = [
    "g () => (float[] y) <int64[3] s = {100000, 100000, 100000}> { y = ConstantOfShape(s) }",
    "g (float[1] x) => (float[] y) <int64[2] s = {10000000, 10000000}> { y = Expand(x, s) }",
    "g (float[10,10] x) => (float[] y) <int64[2] s = {1000000, 1000000}> { y = Tile(x, s) }",
    "g () => (float[] y) <float[1] x = {1}, int64[1] s = {100000000000000}> { y = Tile(x, s) }",
    "g () => (int64[] y) <int64 a = {0}, int64 b = {100000000000000}, int64 d = {1}> { y = Range(a, b, d) }",
    f"g ({IMAGE}) => (float[] y) <int64[8] s = {{0,0,10000000,10000000,0,0,0,0}}> {{ y = Pad(x, s) }}",
    f"g ({IMAGE}) => (float[] y) <int64[4] s = {{1,1,10000000,10000000}}> {{ y = Resize(x, , , s) }}",
    f"g ({IMAGE}) => (float[] y) <float[4] s = {{1,1,1000000,1000000}}> {{ y = Resize(x, , s) }}",
    f"g ({IMAGE}) => (float[] y) <float[1,1,1,1] w = {{1}}> {{ y = Conv <pads = [9000000,9000000,9,9]> (x, w) }}",
    f"g ({IMAGE}) => (float[] y) <float[1,1,1,1] w = {{1}}> {{ y = ConvTranspose <strides = [9000000,99999]> (x, w) }}",
    "g (int64[10] x) => (float[] y) <int64 d = {100000000000000}, float[2] v = {0,1}> { y = OneHot(x, d, v) }",
    "g (float[10000000,1] x, float[1,10000000] z) => (float[] y) { y = MatMul(x, z) }",
    "g (float[10000000,1] x, float[1,10000000] z) => (float[] y) { y = Add(x, z) }",
    "g (float[1000000000] x, float[100000] z) => (float[] y) { y = Einsum <equation = \"a,b->ab\"> (x, z) }",
    "g (float[10000000,10000000] x) => (float[] y) { y = EyeLike(x) }",
    "g () => (float[] y) { y = RandomNormal <shape = [10000000, 10000000]> () }",
]  # fmt: skip


@pytest.mark.parametrize("text", TOO_LARGE)
def test_what_no_machine_can_hold_is_refused_before_it_is_made(text):
    tracemalloc.start()
    try:
        with pytest.raises(
            SourceError, match=r"an output of shape .* needs .* GB of memory, but only .* GB are available"
        ):
            _compiled(parse(text, 18))
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()


IMPOSSIBLE = [
    ("g () => (float[] y) <int64[1] s = {-4}> { y = ConstantOfShape(s) }", "cannot take inputs"),
    ("g (float[4] x) => (float[] y) <float[2] e = {0, 1}> { y = Clip(x, e) }", "each limit must be one number"),
    ("g (float[4] x) => (float[] y) <int64[2] s = {-9, 2}> { y = Pad(x, s) }", "has a negative size"),
    ("g (float[8] x) => (float[] y) { y, z = Split <num_outputs = 1000000000000> (x) }", "cannot be split"),
    ("g (float[9] x) => (float[] y) <int64[1] k = {1000000000000}> { y, z = TopK(x, k) }", "there are no"),
    (f"g ({IMAGE}) => (float[] y) <float[1,1,1,1] w = {{1}}> {{ y = Conv <pads = [1, 1]> (x, w) }}", "2 pads"),
    (f"g ({IMAGE}) => (float[] y) <float[1,1,1,1] w = {{1}}, float[2] b = {{1, 2}}> {{ y = Conv(x, w, b) }}",
     "a bias of shape"),
    (f"g ({IMAGE}) => (float[] y) <float[1,1,1,1] w = {{1}}> {{ y = Conv <kernel_shape = [3, 3]> (x, w) }}",
     "a kernel of"),
    (f"g ({IMAGE}) => (float[] y) <float[2] w = {{1, 1}}> {{ y = BatchNormalization(x, w, w, w, w) }}", "a channel"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), IMPOSSIBLE)
def test_what_cannot_be_is_refused(text, said):
    with pytest.raises(SourceError, match=said):
        _compiled(parse(text, 18))


def test_a_scale_that_leaves_nothing_leaves_nothing():
    text = f"g ({IMAGE}) => (float[] y) <float[4] s = {{1, 1, 1.0e-12, 1}}> "
    model = _compiled(parse(text + '{ y = Resize <mode = "linear", antialias = 1> (x, , s) }', 18))
    assert model(np.ones((1, 1, 8, 8), np.float32)).shape == (1, 1, 0, 8)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool", "AveragePool <count_include_pad = 1,"])
def test_windows_much_wider_than_the_image_take_no_time(op):
    op = op if "<" in op else f"{op} <"
    model = _compiled(parse(f"g ({IMAGE}) => (float[] y) {{ y = {op} {WIDE}> (x) }}", 18))
    start = time.process_time()
    x = np.ones((1, 1, 8, 8), np.float32)
    assert model(x).shape == (1, 1, 9, 9)
    assert time.process_time() - start < 20


def test_an_arena_must_fit_into_memory(most):
    model = parse("g (float[N,64] x, float[64,N] z) => (float[] y) { a = MatMul(x, z) b = Relu(a) y = ReduceSum(b) }")
    most(free=lambda: 100 << 20)
    compiled = _compiled(model)
    one, other = np.ones((8, 64), np.float32), np.ones((64, 8), np.float32)
    assert compiled.run({"x": one, "z": other})["y"] == 64 * 64
    large = np.ones((4000, 64), np.float32)
    most(free=lambda: 65 << 20)
    with pytest.raises(SourceError, match="g: a run needs 0.1.* GB of memory, but only 0.06816 GB are available"):
        compiled.run({"x": large, "z": np.ascontiguousarray(large.T)})


def test_what_is_computed_of_constants_must_fit_into_a_part_of_memory(most, monkeypatch):
    text = "g () => (float[] y) <int64[1] s = {8000000}> { a = ConstantOfShape(s) b = Neg(a) y = ReduceSum(b) }"
    most(free=lambda: 240_000_000)
    with pytest.raises(SourceError, match=r"Neg node 'b': constant folding needs 0.064 GB .* 0.06 GB"):
        _compiled(parse(text))
    monkeypatch.undo()
    assert _compiled(parse(text)).run({})["y"] == 0


@pytest.mark.parametrize(
    ("within", "constants"),
    [(0, {}), (0, {"m": np.int64(2**62)}), (1, {"m": np.int64(40)})],
    ids=["without end", "very often", "in another"],
)
def test_loops_of_constants_have_a_bound(most, within, constants):
    most(steps=1000)
    with pytest.raises(SourceError, match="Loop node 'y': .* no more than 1,000 steps, nodes of a Loop counted each"):
        _compiled(looping("Neg", 1, within, **constants))


def test_loops_of_constants_within_the_bound_are_computed(most):
    most(steps=1000)
    compiled = _compiled(looping("Add", 2, m=np.int64(5)))
    assert compiled.run({})["y"].tolist() == [32.0, 32.0]
    assert compiled.explain().operators == []


def test_what_a_loop_of_constants_makes_must_fit_into_memory(most):
    most(free=lambda: 80_000_000)
    with pytest.raises(SourceError, match="Loop node 'y': constant folding needs 0.0.* GB of memory"):
        _compiled(looping("Concat", 2))


# --- nodes and nesting ----------------------------------------------------------------------------------------------


def test_a_model_has_a_bound_on_nodes(most):
    most(nodes=3)
    assert read(parse("g (float[3] x) => (float[3] y) { a = Neg(x) b = Neg(a) y = Neg(b) }")).nodes
    with pytest.raises(SourceError, match="g: it must have no more than 3 nodes"):
        read(parse("g (float[3] x) => (float[3] y) { a = Neg(x) b = Neg(a) c = Neg(b) y = Neg(c) }"))


def test_graphs_within_graphs_have_a_bound():
    x = np.float32([1, -2])
    assert np.array_equal(_compiled(nested(6))(x), -x)
    with pytest.raises(SourceError, match="b: nodes must not nest deeper than 16 levels"):
        read(nested(17))


def _calling(levels: int) -> onnx.ModelProto:
    """Functions each of which calls the next one twice."""
    model = parse(RELU)
    model.opset_import.add(domain="own", version=1)
    model.graph.node[0].domain, model.graph.node[0].op_type = "own", "f0"
    for level in range(levels):
        last = level == levels - 1
        body = model.functions.add(domain="own", name=f"f{level}", input=["a"], output=["c"])
        body.opset_import.add(domain="", version=17)
        body.opset_import.add(domain="own", version=1)
        for source, result in (("a", "b"), ("b", "c")):
            name, domain = ("Neg", "") if last else (f"f{level + 1}", "own")
            body.node.append(helper.make_node(name, [source], [result], domain=domain))
    return model


def test_functions_within_functions_have_a_bound():
    assert len(read(_calling(4)).nodes) == 16
    with pytest.raises(SourceError, match="g: nodes must not nest deeper than 16 levels"):
        read(_calling(40))
    with pytest.raises(SourceError, match="g: it must have no more than 100,000 nodes"):
        read(_calling(16))
    model = _calling(2)
    model.functions[1].node[0].domain, model.functions[1].node[0].op_type = "own", "f0"
    with pytest.raises(SourceError, match="g: the function 'f0' calls itself"):
        read(model)


def test_names_must_be_text():
    data = parse("g (float[3] input) => (float[3] y) { y = Relu(input) }").SerializeToString()
    with pytest.raises(SourceError, match="model"):
        read(data.replace(b"input", b"in\xffut"))


# --- data in files of its own ---------------------------------------------------------------------------------------


def _external(folder: Path, location: str, elements: int = 6) -> Path:
    """A model whose constant lies in another file."""
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[elements], data_location=TensorProto.EXTERNAL)
    w.external_data.add(key="location", value=location)
    model = parse("g (float[6] x) => (float[6] y) { y = Add(x, w) }")
    model.graph.initializer.append(w)
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("kind", ["link", "link to a folder", "up and down"])
def test_external_data_behind_links(tmp_path, kind):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "w.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    (inside / "link.bin").symlink_to(outside / "w.bin")
    (inside / "folder").symlink_to(outside)
    location = {"link": "link.bin", "link to a folder": "folder/w.bin", "up and down": "../outside/w.bin"}[kind]
    with pytest.raises(SourceError, match="the constant 'w'.*must be in the model's folder"):
        read(_external(inside, location))


def test_external_data_in_what_is_no_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match="the constant 'w'.*must be a plain file"):
        read(_external(tmp_path, "folder"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(SourceError, match="the constant 'w'.*must be a plain file"):
            read(_external(tmp_path, "pipe", elements=0))


def test_external_data_must_fit_into_memory(tmp_path):
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(1 << 40)  # which takes no room on the disk
    with pytest.raises(SourceError, match="the constant 'w'.* needs 1100 GB of memory"):
        read(_external(tmp_path, "w.bin", elements=1 << 38))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_mapped_file_keeps_no_descriptor_and_is_unmapped_with_its_last_array(tmp_path):
    path = tmp_path / "w.bin"
    path.write_bytes(b"x" * 5000)
    before = len(os.listdir("/proc/self/fd"))
    mapped = mapped_files.contents(path)
    assert len(os.listdir("/proc/self/fd")) == before
    lent = np.frombuffer(mapped[1:3], np.uint8)
    del mapped
    gc.collect()
    assert str(path) in Path("/proc/self/maps").read_text() and lent.tobytes() == b"xx"
    assert isinstance(mapped_files.backing(lent), mapped_files.Mapped)
    del lent
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_mapped_file_tells_of_changes_in_place_alone(tmp_path):
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(16))
    array = np.frombuffer(mapped_files.contents(path), np.uint8)
    mapped_files.check_unchanged([array])
    (tmp_path / "new").write_bytes(b"y" * 16)
    (tmp_path / "new").rename(path)
    mapped_files.check_unchanged([array])
    assert not array.any()
    array = np.frombuffer(mapped_files.contents(path), np.uint8)
    os.utime(path, (1, 1))
    with pytest.raises(SourceError, match="was changed"):
        mapped_files.check_unchanged([array])


def test_a_file_that_is_neither_mapped_nor_read_is_no_crash(tmp_path, monkeypatch):
    class Large(io.FileIO):
        def read(self, *_: object) -> bytes:
            raise MemoryError

    def large(path: Path) -> io.FileIO:
        return Large(path)

    def refuse(*_: object) -> None:
        raise OSError("no room for a map")

    (tmp_path / "w.bin").write_bytes(bytes(16))
    path = _external(tmp_path, "w.bin", elements=4)
    monkeypatch.setattr(mapped_files.Mapped, "of", refuse)
    read(path)
    given = mapped_files.open_regular
    monkeypatch.setattr(mapped_files, "open_regular", lambda at: (large if at.suffix == ".bin" else given)(at))
    with pytest.raises(SourceError, match="the constant 'w'.* cannot be read: .*memory"):
        read(path)


# --- damage ---------------------------------------------------------------------------------------------------------


def _feed(model: cpuconv.Model) -> dict[str, np.ndarray] | None:
    """Ones for each input, a size of 2 where one is open; None where they would be many."""
    shapes = {
        port.name: [size if isinstance(size, int) else 2 for size in port.shape or (2, 2)] for port in model.inputs
    }
    if any(np.prod(shape, dtype=float) > 1e5 for shape in shapes.values()):
        return None
    return {port.name: np.ones(shapes[port.name], port.dtype) for port in model.inputs}


@pytest.mark.parametrize("seed", range(4))
def test_damaged_models_are_refused_or_run(seed):
    """Two small networks after `tests/support/damage/mutations.py`; by hand, with other seeds, larger ones."""
    rng, models = np.random.default_rng(seed), damageable()
    outcomes = {"refused": 0, "run": 0}
    for at in range(150):
        data = mutated(rng, models[at % 2], models[(at + rng.integers(2)) % 2])
        try:
            model = _compiled(data)
            feed = _feed(model)
            if feed is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    assert len(model.run(feed)) == len(model.outputs)
            outcomes["run"] += 1
        except (SourceError, ArgumentError, ArgumentTypeError) as error:
            assert len(str(error)) > 20
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 5
