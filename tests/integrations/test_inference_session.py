"""The interface of ONNX Runtime's session: what it gives, what it refuses, and programs that call it."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import onnx
import pytest

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError
from cpuconv.integrations.binding import OrtValue
from cpuconv.runtime.threads import maximum_threads
from support.graphs import parse
from support.running import processes

TEXT = """g (float[N,3,?,8] x, float[3,1,1] b) => (float[N,3,?,8] y, float z, int64[4] sizes) {
    y = Add(x, b)
    z = ReduceSum<keepdims = 0>(y)
    sizes = Shape(y)
}"""
X = np.random.default_rng(1).standard_normal((2, 3, 5, 8)).astype(np.float32)
B = np.arange(3, dtype=np.float32).reshape(3, 1, 1)
FEED = {"x": X, "b": B}


@pytest.fixture(scope="module")
def model() -> bytes:
    made = parse(TEXT)
    made.producer_name, made.domain, made.model_version, made.doc_string = "maker", "org.example", 3, "what it is"
    made.graph.doc_string = "of the graph"
    onnx.helper.set_model_props(made, {"character": "a\nb", "empty": ""})
    return made.SerializeToString()


@pytest.fixture(scope="module")
def session(model: bytes) -> cpuconv.InferenceSession:
    return cpuconv.InferenceSession(model, providers=["CPUExecutionProvider"])


def _ends(session) -> list[tuple]:
    return [(port.name, port.shape, port.type) for port in (*session.get_inputs(), *session.get_outputs())]


def _metadata(session) -> dict:
    stated = session.get_modelmeta()
    names = ("producer_name", "graph_name", "graph_description", "domain", "description", "version")
    return {**{name: getattr(stated, name) for name in names}, "map": stated.custom_metadata_map}


def test_a_session_of_a_saved_model(model, session, tmp_path):
    path = tmp_path / "net.cpuconv"
    cpuconv.compile(model, threads=1).save(path)
    saved = cpuconv.InferenceSession(path)
    assert _ends(saved) == _ends(session) and saved.get_modelmeta().graph_name
    for got, expected in zip(saved.run(None, FEED), session.run(None, FEED), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    options = cpuconv.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    np.testing.assert_array_equal(cpuconv.InferenceSession(str(path), options).run(["y"], FEED)[0], X + B)


def test_what_a_session_is(session):
    assert _ends(session) == [
        ("x", ["N", 3, None, 8], "tensor(float)"),
        ("b", [3, 1, 1], "tensor(float)"),
        ("y", ["N", 3, None, 8], "tensor(float)"),
        ("z", [], "tensor(float)"),
        ("sizes", [4], "tensor(int64)"),
    ]
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_overridable_initializers() == []
    assert _metadata(session)["map"] == {"character": "a\nb", "empty": ""}


def test_as_onnx_runtime_says(model, session):
    runtime = pytest.importorskip("onnxruntime")
    theirs = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert _metadata(session) == _metadata(theirs)
    assert [end[::2] for end in _ends(session)] == [end[::2] for end in _ends(theirs)]
    for names in (None, [], ["z", "y", "z"]):
        for got, expected in zip(session.run(names, FEED), theirs.run(names, FEED), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5)
            assert got.dtype == expected.dtype and got.shape == expected.shape
    lists = {"x": X.tolist(), "b": B.tolist()}
    np.testing.assert_array_equal(session.run(["y"], lists)[0], theirs.run(["y"], lists)[0])


@pytest.mark.parametrize("shape", [(1, 3, 1, 8), (3, 3, 2, 8), (2, 3, 5, 8)])
def test_other_sizes(session, shape):
    x = np.ones(shape, np.float32)
    y, sizes = session.run(["y", "sizes"], {"x": x, "b": B})
    assert np.array_equal(y, x + B) and tuple(sizes) == shape


@pytest.mark.parametrize(
    ("names", "feed", "error", "words"),
    [
        (None, {"x": X}, ValueError, r"Required inputs \(\['b'\]\) are missing from input feed \(\['x'\]\)"),
        (["q"], FEED, ArgumentError, "'output_names' must be names among y, z, sizes, not 'q'"),
        ("y", FEED, ArgumentTypeError, "a list of names"),
        (None, {**FEED, "c": X}, ArgumentError, "not one for 'c'"),
        (None, {"x": X.astype(np.float64), "b": B}, ArgumentTypeError, r"feed\['x'\].*float32.*float64"),
        (None, {"x": X[0], "b": B}, ArgumentError, r"feed\['x'\]' must be of rank 4"),
        (None, {"x": X[:, :2], "b": B}, ArgumentError, r"feed\['x'\]"),
        (None, {"x": [["a"]], "b": B}, ArgumentTypeError, r"feed\['x'\]"),
    ],
)
def test_refused(session, names, feed, error, words):
    with pytest.raises(error, match=words):
        session.run(names, feed)


@pytest.mark.parametrize("source", [b"no model", "missing.onnx"])
def test_sources_that_cannot_be_read(source):
    with pytest.raises(SourceError):
        cpuconv.InferenceSession(source)


def test_a_source_of_another_type():
    with pytest.raises(TypeError, match="path, bytes"):
        cpuconv.InferenceSession(3)


def test_a_run_in_a_thread_of_its_own(session):
    heard, done = [], threading.Event()

    def callback(results, user_data, error):
        heard.append((results, user_data, error))
        done.set()

    session.run_async(["y"], FEED, callback, "mine")
    assert done.wait(60)
    done.clear()
    session.run_async(["y"], {"x": X, "b": B[0]}, callback, None)
    assert done.wait(60)
    (results, data, error), failed = heard
    assert np.array_equal(results[0], X + B) and (data, error) == ("mine", "")
    assert failed[:2] == ([], None) and "feed['b']" in failed[2]


def test_nothing_is_profiled(session):
    assert session.end_profiling() == "" and session.get_profiling_start_time_ns() == 0


def test_an_input_that_decides_a_branch():
    made = parse(
        """g (float[N,3] x, int64 rate) => (float[] y) <int64 high = {16000}> {
            fast = Equal(rate, high)
            y = If (fast) <
                then_branch = t () => (float[] p) { p = Neg(x) },
                else_branch = e () => (float[] p) { p = Concat<axis = 1>(x, x) }>
        }"""
    )
    ours, x = cpuconv.InferenceSession(made.SerializeToString()), np.ones((2, 3), np.float32)
    for rate, expected in ((16000, -x), (8000, np.ones((2, 6))), (16000, -x)):
        (y,) = ours.run(None, {"x": x, "rate": np.array(rate)})
        assert np.array_equal(y, expected)


def test_binding(session):
    binding, x, y = session.io_binding(), X.copy(), np.empty_like(X)
    binding.bind_cpu_input("x", x)
    binding.bind_input("b", "cpu", 0, np.float32, B.shape, B.ctypes.data)
    binding.bind_output("z")
    binding.bind_output("y", "cpu", 0, onnx.TensorProto.FLOAT, y.shape, y.ctypes.data)
    for _ in range(2):
        session.run_with_iobinding(binding)
        assert np.array_equal(y, x + B)
        z, copied = binding.copy_outputs_to_cpu()
        np.testing.assert_allclose(z, (x + B).sum(), rtol=1e-5)
        assert np.array_equal(copied, y) and not np.may_share_memory(copied, y)
        x *= 2  # what the array holds at the next run counts
    assert [value.data_type() for value in binding.get_outputs()] == ["tensor(float)"] * 2
    binding.clear_binding_outputs()
    with pytest.raises(ArgumentError, match="outputs"):
        session.run_with_iobinding(binding)
    binding.bind_output("y")
    binding.clear_binding_inputs()
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_with_iobinding(binding)


def test_binding_refuses(session):
    binding = session.io_binding()
    with pytest.raises(ArgumentError, match="'q'"):
        binding.bind_output("q")
    with pytest.raises(ArgumentError, match="'q'"):
        binding.bind_cpu_input("q", X)
    with pytest.raises(ArgumentError, match="'cuda'"):
        binding.bind_output("y", "cuda")
    with pytest.raises(ArgumentError, match="element_type"):
        binding.bind_output("y", buffer_ptr=X.ctypes.data)


def test_values_of_both_kinds(session):
    runtime = pytest.importorskip("onnxruntime")
    for kind in (OrtValue, runtime.OrtValue):
        values = {"x": kind.ortvalue_from_numpy(X), "b": kind.ortvalue_from_numpy(B)}
        assert np.array_equal(session.run(["y"], values)[0], X + B)
        (y,) = session.run_with_ort_values(["y"], values)
        assert np.array_equal(y.numpy(), X + B) and y.shape() == list(X.shape) and y.element_type() == 1
        binding, target = session.io_binding(), kind.ortvalue_from_numpy(np.zeros_like(X))
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("y", target)
        session.run_with_iobinding(binding)
        assert np.array_equal(target.numpy(), X + B)


def test_arrays_keep_the_values_alive_that_they_lie_in(session):
    """Whatever else is let go of: the binding, the session's results, views of an array."""
    runtime = pytest.importorskip("onnxruntime")
    binding, target = session.io_binding(), runtime.OrtValue.ortvalue_from_numpy(np.zeros_like(X))
    alive = weakref.ref(target)
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("b", B)
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    got = binding.get_outputs()[0].numpy()[1:].reshape(-1)
    del binding, target
    gc.collect()
    assert alive() is not None and np.array_equal(got, (X + B)[1:].ravel())
    del got
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("clear", ["clear_binding_inputs", "clear_binding_outputs"])
def test_an_input_and_an_output_of_one_name_do_not_release_each_other(clear):
    """The network's input is its output too."""
    runtime = pytest.importorskip("onnxruntime")
    session = cpuconv.InferenceSession(
        parse("g (float[4] x) => (float[4] x, float[4] y) { y = Relu(x) }").SerializeToString()
    )
    binding = session.io_binding()
    values = {}
    for name in ("input", "output"):
        value = runtime.OrtValue.ortvalue_from_numpy(np.full(4, 7 if name == "input" else 0, np.float32))
        values[name] = weakref.ref(value)
        getattr(binding, f"bind_ortvalue_{name}")("x", value)
    binding.bind_output("y")
    del value
    gc.collect()
    session.run_with_iobinding(binding)
    x, y = binding.copy_outputs_to_cpu()
    assert np.array_equal(x, np.full(4, 7, np.float32)) and np.array_equal(y, x)
    binding.results = []
    getattr(binding, clear)()
    gc.collect()
    kept = "output" if clear == "clear_binding_inputs" else "input"
    assert {name for name, value in values.items() if value() is not None} == {kept}


@pytest.mark.parametrize("wanted", [0, 1, maximum_threads(), maximum_threads() + 7])
def test_threads(model, wanted):
    options = cpuconv.SessionOptions()
    options.intra_op_num_threads = wanted
    options.logid = "kept"
    session = cpuconv.InferenceSession(model, options)
    assert session._model.threads == (min(wanted, maximum_threads()) or maximum_threads())
    assert session.get_session_options().logid == "kept"


def test_options_of_onnx_runtime(model):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = cpuconv.InferenceSession(model, options, providers=["CUDAExecutionProvider"], provider_options=[{}])
    assert session._model.threads == 1
    ours = cpuconv.SessionOptions()
    for name in (name for name in dir(options) if not name.startswith("_") and not callable(getattr(options, name))):
        assert hasattr(ours, name), name


def test_sizes_for_symbols(model):
    options = cpuconv.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    session = cpuconv.InferenceSession(model, options)
    assert session.get_inputs()[0].shape == [2, 3, None, 8]
    with pytest.raises(ArgumentError, match=r"feed\['x'\]"):
        session.run(None, {"x": X[:1], "b": B})


def test_entries_of_options_are_kept():
    options = cpuconv.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(ArgumentError, match="'key' must be one of an entry that was added, not 'other'"):
        options.get_session_config_entry("other")


def test_import_takes_none_of_it():
    code = "import sys, cpuconv; print([n for n in sys.modules if n == 'onnx' or 'integrations' in n])"
    assert processes.run("-c", code).stdout.strip() == "[]"
