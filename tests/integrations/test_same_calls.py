"""The same calls of ONNX Runtime's interface, served by it and by cpuconv: equal results, types and errors."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime")

from support.graphs import parse  # noqa: E402
from support.serving import is_served, serving  # noqa: E402

MODEL = parse("""g (float[N,3,?,8] x, float[3,1,1] b) => (float[N,3,?,8] y, float z, int64[4] sizes) {
    y = Add(x, b)
    z = ReduceSum<keepdims = 0>(y)
    sizes = Shape(y)
}""").SerializeToString()
X = np.arange(240, dtype=np.float32).reshape(2, 3, 5, 8)
B = np.ones((3, 1, 1), np.float32)
FEED = {"x": X, "b": B}
VALUES = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in FEED.items()}
CPU = "CPUExecutionProvider"
Session = ort.InferenceSession


def session(**more: Any) -> Any:
    return Session(MODEL, **more)


def run(names: Any, feed: Any, options: Any = None) -> Callable[[], Any]:
    return lambda: session().run(names, feed, options)


def providers(given: Any, options: Any = None) -> Callable[[], Any]:
    def call() -> Any:
        made = session(providers=given, provider_options=options)
        return made.get_providers(), made.get_provider_options()

    return call


def background(names: Any, feed: Any) -> Callable[[], Any]:
    def call() -> Any:
        done, heard = threading.Event(), []

        def callback(results: Any, data: Any, error: str) -> None:
            heard.append((list(results), data, error.rpartition(" : ")[2].replace(": ", ":")))
            done.set()

        made = session()
        made.run_async(names, feed, callback, 7)
        assert done.wait(60)
        return heard

    return call


def options(**values: Any) -> Any:
    made = ort.SessionOptions()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def entry(kind: Any, key: str, value: str) -> Any:
    made = kind()
    getattr(made, "add_session_config_entry" if kind is ort.SessionOptions else "add_run_config_entry")(key, value)
    return made


def overridden() -> Any:
    made = ort.SessionOptions()
    made.add_free_dimension_override_by_name("N", 2)
    with_sizes = session(sess_options=made)
    yield with_sizes.get_inputs()[0].shape
    yield with_sizes.get_session_options().intra_op_num_threads
    yield with_sizes.run(None, {"x": X[:1], "b": B})


def bound(*steps: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """A call that binds both inputs and one output, then takes steps."""

    def call() -> Any:
        made = session()
        binding = made.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_cpu_input("b", B)
        binding.bind_output("z")
        yield isinstance(binding, ort.IOBinding)
        for step in steps:
            yield step(made, binding)
        made.run_with_iobinding(binding)
        yield binding.get_outputs()
        yield binding.copy_outputs_to_cpu()
        yield [value.data_ptr() == TARGET.ctypes.data for value in binding.get_outputs()]

    return call


TARGET = np.zeros_like(X)
MEMORY = ("cpu", 0, np.float32, X.shape, TARGET.ctypes.data)
TARGET_VALUE = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(X))


def foreign() -> Any:
    """Lists and methods that ONNX Runtime's session alone has."""
    made = session()
    yield len(made.get_input_memory_infos()), len(made.get_output_memory_infos())
    yield made.get_tuning_results(), made.disable_fallback(), made.enable_fallback(), made.end_profiling()
    yield made._model_path, made._model_bytes == MODEL, made.get_profiling_start_time_ns()
    yield made.set_providers([CPU]), made.get_providers(), made.run(["z"], FEED)


def described(source: bytes = MODEL) -> Any:
    made = Session(source)
    yield [str(end) for end in (*made.get_inputs(), *made.get_outputs(), *made.get_overridable_initializers())]
    meta = made.get_modelmeta()
    yield meta.producer_name, meta.graph_name, meta.domain, meta.description, meta.version, meta.custom_metadata_map
    yield type(made.get_session_options()).__name__, isinstance(made, ort.InferenceSession), type(made).__qualname__


UNNAMED = parse("g (float[a,b] x) => (float[a,b] y) { y = Relu(x) }")
for end in (*UNNAMED.graph.input, *UNNAMED.graph.output):
    for dim in end.type.tensor_type.shape.dim:
        dim.dim_param = "?"

UNSHAPED = parse("""g (float[N,3,H,W] x) => (float[N,3] y, float[N,3,p,q] z, float[n,k,p,q] w) <int64[2] to = {0, -1}> {
    pooled = GlobalAveragePool(x)
    y = Reshape(pooled, to)
    z = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    w = Concat<axis = 1>(z, z)
}""")
UNSHAPED.graph.output[0].type.tensor_type.ClearField("shape")

CALLS: dict[str, Callable[[], Any]] = {
    **{f"names-{names}": run(names, FEED) for names in (None, [], ("y", "y"), ["q"], "y", [None], [3], 3)},
    "missing": run(None, {"x": X}),
    "extra": run(None, {**FEED, "c": X}),
    "float64": run(None, {"x": X.astype(float), "b": B}),
    "rank": run(None, {"x": X[0], "b": B}),
    "sizes": run(None, {"x": X[:, :2, :, :3], "b": B}),
    "list": run(None, {"x": X.tolist(), "b": B}),
    "ragged": run(None, {"x": [[1, 2], [3]], "b": B}),
    "text": run(None, {"x": "text", "b": B}),
    "number": run(None, {"x": 3.0, "b": B}),
    "strided": run(None, {"x": X[:, :, ::-1], "b": B}),
    "empty": run(None, {"x": X[:0], "b": B}),
    "value": run(None, VALUES),
    "no-feed": run(None, None),
    "options": run(["z"], FEED, entry(ort.RunOptions, "a", "b")),
    "source-type": lambda: Session(3),
    "source-missing": lambda: Session("/missing.onnx"),
    "source-bytes": lambda: Session(b"no model"),
    "source-empty": lambda: Session(""),
    "source-array": lambda: Session(bytearray(MODEL)),
    "source-keyword": lambda: Session(path_or_bytes=MODEL, unknown=3).get_providers(),
    "options-type": lambda: Session(MODEL, "x"),
    "options-unknown": lambda: options(fast=True),
    "options-all": lambda: session(
        sess_options=options(
            intra_op_num_threads=1, inter_op_num_threads=1, execution_mode=ort.ExecutionMode.ORT_PARALLEL, logid="a",
            graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL, enable_mem_pattern=False,
        )
    ).run(None, FEED),
    "options-entry": lambda: session(sess_options=entry(ort.SessionOptions, "a", "b")).run(None, FEED),
    "options-sizes": overridden,
    **{
        f"providers-{given}": providers(given)
        for given in (None, [], [CPU], (CPU,), [(CPU, {"a": 1})], [3], 3, [CPU, CPU], ["none"])
    },
    "providers-absent": providers(["CUDAExecutionProvider"]),
    "providers-first": providers(["CUDAExecutionProvider", CPU]),
    "providers-options": providers([CPU], [{}, {}]),
    "described": described,
    "described-unnamed": lambda: described(UNNAMED.SerializeToString()),
    "described-unshaped": lambda: described(UNSHAPED.SerializeToString()),
    "pickle": lambda: pickle.dumps(session()),
    "deepcopy": lambda: copy.deepcopy(session()),
    "foreign": foreign,
    "values": lambda: session().run_with_ort_values(None, VALUES),
    "values-arrays": lambda: session().run_with_ort_values(None, FEED),
    "values-name": lambda: session().run_with_ort_values(["q"], VALUES),
    "background": background(None, FEED),
    "background-rank": background(None, {"x": X[0], "b": B}),
    "background-name": background(["q"], FEED),
    "background-missing": background(None, {"x": X}),
    "bound": bound(),
    "bound-twice": bound(lambda made, b: (b.bind_output("y"), made.run_with_iobinding(b), b.bind_output("y"))),
    "bound-memory": bound(lambda made, b: b.bind_output("y", *MEMORY)),
    "bound-value": bound(
        lambda made, b: (b.bind_ortvalue_output("y", TARGET_VALUE), b.bind_ortvalue_input("x", VALUES["x"]))
    ),
    "bound-cleared": bound(lambda made, b: b.clear_binding_outputs(), lambda made, b: b.bind_output("sizes")),
    "bound-nothing": bound(lambda made, b: b.clear_binding_outputs()),
    "bound-vector": bound(lambda made, b: (made.run_with_iobinding(b), len(b.get_outputs_as_ortvaluevector()))[1]),
    "bound-name": bound(lambda made, b: b.bind_cpu_input("q", X)),
    "bound-output-name": bound(lambda made, b: b.bind_output("q")),
    "bound-device": bound(lambda made, b: b.bind_output("y", "abacus")),
    "bound-list": bound(lambda made, b: b.bind_cpu_input("x", [1.0])),
    "bound-rank": bound(lambda made, b: b.bind_cpu_input("x", X[0])),
    "bound-address": bound(lambda made, b: b.bind_output("y", buffer_ptr=1)),
    "bound-elsewhere": bound(lambda made, b: session().run_with_iobinding(b)),
    "bound-constructed": lambda: ort.IOBinding(session()).copy_outputs_to_cpu(),
}  # fmt: skip


def plain(value: Any) -> Any:
    """A result as what can be compared."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype, value.shape, value.tolist()
    if isinstance(value, ort.OrtValue):
        return "value", plain(value.numpy())
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """Results, or the error's class and text; what is printed, and the warnings of ONNX Runtime."""
    results: list[Any] = []
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("always")
        try:
            result = call()
            for each in result if hasattr(result, "__next__") else (result,):
                results.append(plain(each))
        except Exception as error:
            results.append((type(error), str(error).partition("Invoked with")[0]))
    texts = [str(each.message) for each in warned if not each.category.__name__.startswith("Cpuconv")]
    return results, printed.getvalue(), texts


@pytest.mark.parametrize("name", CALLS)
def test_same(name: str) -> None:
    expected = outcome(CALLS[name])
    with serving():
        assert outcome(CALLS[name]) == expected
        assert is_served(session())
