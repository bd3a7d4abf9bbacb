"""Models that are saved and loaded: results equal to the last bit, and what else must survive."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from support import oracle

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import cpuconv  # noqa: E402
from baselib import files  # noqa: E402
from baselib.interpreter import python  # noqa: E402
from cpuconv.errors import ArgumentError, CpuconvWarning, SourceError  # noqa: E402
from cpuconv.kernels.packing.packing import Packing  # noqa: E402
from cpuconv.network import program_builder  # noqa: E402
from cpuconv.network.model import Model  # noqa: E402
from cpuconv.network.saved import container, program, reading, writing  # noqa: E402
from support.damage.mutations import header_of, with_header  # noqa: E402
from support.damage.saved import WEIGHTS, X, compiled, source  # noqa: E402
from support.graph.detector import detector  # noqa: E402
from support.graph.random_networks import known_networks  # noqa: E402
from support.graphs import close, parse, run  # noqa: E402

RNG = np.random.default_rng(1)


def through(model: Model, path: Path, **options: object) -> Model:
    """The model, saved and loaded."""
    model.save(path)
    return cpuconv.load(path, **options)


def same(results: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert [*results] == [*expected]
    for name, array in results.items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == expected[name].dtype


def explained(loaded: Model, made: Model, *unlike: str) -> None:
    """What became of both is the same, but that one was chosen before, and what is `unlike`."""
    told, known = loaded.explain().to_dict(), made.explain().to_dict()
    assert told["plan_decided_by"] == "record"
    assert all(told.pop(name) > 0 < known.pop(name) for name in unlike)
    assert told == {**known, "plan": "", "plan_decided_by": "record", "weighed": {}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.cpuconv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


# --- what survives --------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(known_networks, st.integers(1, oracle.THREADS))
def test_a_random_network_gives_the_same_bits(folder, drawn, threads):
    model, feed = drawn
    made = cpuconv.compile(model.SerializeToString(), threads=threads, strategy="heuristic")
    loaded = through(made, folder / "m.cpuconv")
    assert (loaded.threads, loaded.inputs, loaded.outputs) == (made.threads, made.inputs, made.outputs)
    same(loaded.run(feed), made.run(feed))
    explained(loaded, made)
    loaded.save(folder / "again.cpuconv")
    assert (folder / "again.cpuconv").read_bytes() == (folder / "m.cpuconv").read_bytes()


def test_open_sizes_stay_open(path):
    made = compiled()
    feeds = [{"x": RNG.standard_normal(shape, np.float32)} for shape in ((1, 3, 8, 12), (2, 3, 6, 12), (1, 3, 9, 12))]
    expected = [made.run(feed) for feed in feeds[:2]]
    loaded = through(made, path)
    assert loaded.inputs == made.inputs and loaded.inputs[0].shape == ("N", 3, "H", 12)
    for feed, results in zip(feeds, [*expected, made.run(feeds[2])], strict=True):
        same(loaded.run(feed), results)
    same(through(loaded, path).run(feeds[2]), made.run(feeds[2]))
    assert len(header_of(path.read_bytes())["programs"]) == 3


def noted(monkeypatch, name, followed):
    made = getattr(program_builder, name)

    def noting(*args):
        followed.append(args[2] if len(args) > 2 else None)
        return made(*args)

    monkeypatch.setattr(program_builder, name, noting)


def test_a_new_size_follows_what_was_saved_for_one_about_as_large(path, monkeypatch):
    made = compiled()
    made.run(X)
    loaded = through(made, path)
    followed = []
    noted(monkeypatch, "lay_out", followed)  # as a record says
    noted(monkeypatch, "load_or_plan_layout", followed)  # as is cheapest
    loaded.run({"x": np.concatenate([X["x"]] * 4)})  # another range of sizes
    loaded.run({"x": np.ones((1, 3, 9, 12), np.float32)})
    assert followed[0] is None and followed[1].to_dict()["nodes"].keys() >= {"Conv d"}


def test_sizes_may_be_stated_when_a_model_is_loaded(path):
    loaded = through(compiled(), path, input_shapes={"x": (1, 3, 8, 12)})
    assert loaded.outputs[0].shape == (1, 10)
    same(loaded.run(X), compiled(x=(1, 3, 8, 12)).run(X))
    compiled(x=(1, 3, 8, 12)).save(path)
    with pytest.raises(ArgumentError, match=r"input_shapes\['x'\]"):
        cpuconv.load(path, input_shapes={"x": (2, 3, 8, 12)})
    with pytest.raises(ArgumentError, match=r"feed\['x'\].*\(1, 3, 8, 12\).*\(2, 3, 8, 12\)"):
        cpuconv.load(path)(np.zeros((2, 3, 8, 12), np.float32))


def test_sizes_that_depend_on_data(path):
    made = cpuconv.compile(detector(), threads=1, strategy="heuristic")
    first, second = (RNG.standard_normal((1, 3, size, size), np.float32) for size in (6, 9))
    expected = made.run({"x": first})
    loaded = through(made, path)
    assert [*expected] == ["all", "best", "chosen"]
    same(loaded.run({"x": first}), expected)
    explained(loaded, made, "constant_bytes")  # a template has addresses of its own
    same(loaded.run({"x": second}), made.run({"x": second}))


def test_outputs_that_are_inputs_and_constants(path):
    made = cpuconv.compile(
        parse("""g (float[2,3] x) => (float[2,3] x, float[2] fixed, bool[2,3] flags, float[2,3] y) {
            fixed = Constant<value = float[2] {1.5, 2.5}>()
            half = Constant<value = float {0.5}>()
            flags = Greater(x, half)
            y = Relu(x)
        }""")
    )
    feed = {"x": RNG.standard_normal((2, 3), np.float32)}
    same(through(made, path).run(feed), made.run(feed))


def test_operators_of_the_reference_evaluator(path):
    text = "g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Sinh(a) }"
    with pytest.warns(CpuconvWarning, match="Sinh"):
        made = cpuconv.compile(parse(text))
        loaded = through(made, path)
    feed = {"x": RNG.standard_normal((2, 3), np.float32)}
    same(loaded.run(feed), made.run(feed))


# --- where it is loaded ---------------------------------------------------------------------------------------------


def test_nothing_is_packed_and_no_raw_weight_read(path, monkeypatch):
    made = compiled(x=(1, 3, 8, 12))
    expected = made.run(X)
    made.save(path)
    raw = WEIGHTS["w2"].tobytes()
    assert raw in path.read_bytes()
    checked = []
    check = container.checksum
    monkeypatch.setattr(container, "checksum", lambda array: checked.append(array.tobytes()) or check(array))
    monkeypatch.setattr(Packing, "pack", None)
    loaded = cpuconv.load(path)
    same(loaded.run(X), expected)
    assert checked and raw not in checked


def test_without_onnx(path, environ, tmp_path):
    made = compiled(oracle.THREADS)
    results = made.run(X)
    made.save(path)
    np.savez(tmp_path / "arrays.npz", x=X["x"], **results)
    code = """
import sys, numpy as np
for name in ("onnx", "google", "google.protobuf"):
    sys.modules[name] = None
import cpuconv
arrays = dict(np.load(sys.argv[2]))
results = cpuconv.load(sys.argv[1]).run({"x": arrays.pop("x")})
assert all(np.array_equal(arrays[name], results[name]) for name in arrays) and len(arrays) == 2
try:
    cpuconv.load(sys.argv[3])
except cpuconv.SourceError as error:
    assert "package onnx" in str(error)
else:
    raise AssertionError
"""
    evaluated = tmp_path / "evaluated.cpuconv"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpuconv.compile(parse("g (float[2,3] x) => (float[2,3] y) { y = Sinh(x) }")).save(evaluated)
    files_given = (path, tmp_path / "arrays.npz", evaluated)
    subprocess.run(python("-c", code, *map(str, files_given)), env=environ, check=True)


def test_on_another_cpu_it_is_planned_anew_and_says_so(path, monkeypatch):
    made = compiled(x=(1, 3, 8, 12))
    made.save(path)
    there = {**program.here(), "device": "another"}
    monkeypatch.setattr(reading, "here", lambda: there)
    monkeypatch.setattr(writing, "here", lambda: there)
    with pytest.warns(CpuconvWarning, match="^g was saved on another CPU") as caught:
        loaded = cpuconv.load(path)
        results = loaded.run(X)
    assert len(caught) == 1
    for got, expected in zip(results.values(), run(source(), X), strict=True):
        close(got, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(through(loaded, path).run(X), results)


def test_other_options_than_those_it_was_saved_with(path):
    made = compiled(oracle.THREADS)
    made.run(X)
    with pytest.warns(CpuconvWarning) as caught:
        loaded = through(made, path, threads=1, accuracy="exact")
    told = "g was saved with threads=2, accuracy='standard' and is loaded with threads=1, accuracy='exact': layouts and"
    assert [str(each.message)[: len(told)] for each in caught] == [told]
    assert caught[0].filename == __file__
    assert loaded.threads == 1
    same(loaded.run(X), cpuconv.compile(source(), threads=1, strategy="heuristic", accuracy="exact").run(X))
    with pytest.raises(ArgumentError, match="accuracy"):
        cpuconv.load(path, accuracy="best")
    with pytest.raises(ArgumentError, match="threads"):
        cpuconv.load(path, threads=0)


def test_other_options_do_not_matter_where_nothing_was_chosen(path):
    compiled(2).save(path)  # sizes are open, and none ran
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cpuconv.load(path, threads=1).threads == 1


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_replaced_stays_what_it_was_to_who_has_loaded_it(path):
    first = compiled(x=(1, 3, 8, 12))
    loaded = through(first, path)
    cpuconv.compile(parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")).save(path)
    assert cpuconv.load(path).inputs[0].shape == (2, 3)
    same(loaded.run(X), first.run(X))
    loaded.save(path)
    same(cpuconv.load(path).run(X), first.run(X))
    assert path.stat().st_mode & 0o777 == 0o644 and os.listdir(path.parent) == [path.name]


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are read from Linux's /proc")
def test_models_keep_no_descriptors(path, tmp_path):
    onnx.save(source(), tmp_path / "net.onnx")
    shapes = {"x": (1, 3, 8, 12)}

    def made() -> list[cpuconv.Model]:
        given = tmp_path / "net.onnx"
        return [cpuconv.load(path), cpuconv.compile(given, threads=1, strategy="heuristic", input_shapes=shapes)]

    compiled().save(path)
    models = made()  # and what is opened once in a process
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        models += made()
    assert len(os.listdir("/proc/self/fd")) == before
    same(models[0].run(X), models[-2].run(X))


def test_a_model_is_saved_whole_or_not_at_all(path, monkeypatch):
    made = compiled()
    path.write_text("before")
    with pytest.raises(OSError, match="no folder"):
        made.save(path.parent / "no folder" / "m.cpuconv")
    with pytest.raises(OSError, match=r"m\.cpuconv"):
        made.save(path / "m.cpuconv")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupted)  # all has been written, but under another name
    with pytest.raises(KeyboardInterrupt):
        made.save(path)
    assert path.read_text() == "before" and os.listdir(path.parent) == [path.name]


def test_a_source_that_has_changed_is_not_saved(path):
    there = path.with_suffix(".onnx")
    onnx.save(source(), there)
    made = cpuconv.compile(there, threads=1, strategy="heuristic", input_shapes={"x": (1, 3, 8, 12)})
    same(through(made, path).run(X), made.run(X))
    os.utime(there, (1, 1))
    with pytest.raises(SourceError, match=r"m\.onnx must be as it was"):
        made.save(path)
    there.unlink()
    with pytest.raises(SourceError, match=r"m\.onnx must be as it was"):
        made.save(path)


def test_files_that_are_no_saved_models(path):
    with pytest.raises(SourceError, match="cannot be read"):
        cpuconv.load(path)
    with pytest.raises(SourceError, match="must be a file"):
        cpuconv.load(path.parent)
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="is no saved model; it is an empty file: get the file again"):
        cpuconv.load(path)
    onnx.save(source(), path)
    with pytest.raises(SourceError, match="no saved model"):
        cpuconv.load(path)
    compiled().save(path)
    with pytest.raises(SourceError, match=r"cpuconv\.load"):
        cpuconv.compile(path)


def test_a_newer_version(path):
    compiled().save(path)
    data = path.read_bytes()
    path.write_bytes(with_header(data, header_of(data), container.FORMAT + 1))
    with pytest.raises(SourceError, match=r"newer cpuconv: its format is 3, this one reads up to 2"):
        cpuconv.load(path)
