"""Results, and the caller's floating-point environment afterwards, whatever environment the caller has set."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import platform
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.conv import session  # noqa: E402
from cpuconv.runtime.float_environment import default_environment, is_default  # noqa: E402
from cpuconv.runtime.threads import maximum_threads  # noqa: E402
from support.running.processes import run  # noqa: E402

X86 = platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="registers are not known here"
)
# Bits of MXCSR, the eighth word of glibc's fenv_t, or of FPCR, the first.
ENVIRONMENTS = (
    {"FTZ": 0x8000, "DAZ": 0x0040, "FTZ and DAZ": 0x8040, "down": 0x2000, "up": 0x4000, "towards zero": 0x6000}
    if X86
    else {"FZ": 1 << 24, "up": 1 << 22, "down": 2 << 22, "towards zero": 3 << 22}
)
_WORD, _FLAGS = (7, 0x3F) if X86 else (0, 0)


def control() -> int:
    """The control word of this thread, without the flags that any operation sets."""
    words = (ctypes.c_uint32 * 64)()
    ctypes.CDLL(None).fegetenv(words)
    return words[_WORD] & ~_FLAGS


@contextlib.contextmanager
def environment(bits: int) -> Iterator[None]:
    """An environment with these bits of the control word set."""
    library, before, words = ctypes.CDLL(None), (ctypes.c_uint32 * 64)(), (ctypes.c_uint32 * 64)()
    library.fegetenv(before)
    library.fegetenv(words)
    words[_WORD] |= bits
    library.fesetenv(words)
    try:
        yield
    finally:
        library.fesetenv(before)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers of which a fourth are subnormal, and whose products often are."""
    rng = np.random.default_rng(seed)
    array = rng.standard_normal(shape).astype(np.float32)
    scale = rng.choice(np.array([1, 1, 1e-20, 1e-39], np.float32), shape)
    return (array * scale).astype(np.float32)


def model(*, quantised: bool = False):
    """Kernels and references: convolutions, a formula, a constant to compute, an operator without kernels."""
    nodes = [helper.make_node("Mul", ["w", "third"], ["scaled"])]
    weights = "scaled"
    x = "x"
    if quantised:
        nodes += [
            helper.make_node("QuantizeLinear", [name, "tenth", "zero"], [f"{name}.q"]) for name in ("x", "scaled")
        ] + [
            helper.make_node("DequantizeLinear", [f"{name}.q", "tenth", "zero"], [f"{name}.r"])
            for name in ("x", "scaled")
        ]
        x, weights = "x.r", "scaled.r"
    nodes += [
        helper.make_node("Conv", [x, weights], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mod", ["s", "third"], ["m"], fmod=1),
        helper.make_node("Mul", ["m", "x"], ["y"]),
        helper.make_node("Softmax", ["y"], ["z"]),
    ]
    constants = {
        "w": numbers(8, 8, 3, 3, seed=1),
        "third": np.float32(1 / 3),
        "tenth": np.float32(0.1),
        "zero": np.int8(0),
    }
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 40, 40]) for name in "xyz"]
    stated = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stated)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


# All made in the default environment.
X, WEIGHTS, BIAS = numbers(1, 8, 40, 40), numbers(8, 8, 3, 3), numbers(8)
MODELS = [model(quantised=quantised) for quantised in (False, True)]
_rng = np.random.default_rng(3)
INTEGERS = _rng.integers(0, 255, (1, 8, 9, 9), np.uint8), _rng.integers(-60, 60, (8, 8, 3, 3), np.int8)
SCALES = cpuconv.Quantization(x_scale=0.1, w_scale=0.3, y_scale=0.7)


def _network(quantised: bool) -> list[np.ndarray]:
    return list(cpuconv.compile(MODELS[quantised]).run({"x": X}).values())


def _conv2d() -> list[np.ndarray]:
    session.current.cache.clear()
    return [cpuconv.conv2d(X, WEIGHTS, BIAS, padding=1, activation=("clip", 1e-39, 0.1))]


def _conv2d_of_integers() -> list[np.ndarray]:
    session.current.cache.clear()
    return [cpuconv.conv2d(*INTEGERS, BIAS, padding=1, y_dtype="uint8", quantization=SCALES)]


def _plan() -> list[np.ndarray]:
    return [cpuconv.plan(X.shape, WEIGHTS, padding=1)(X)]


def _reorder() -> list[np.ndarray]:
    return [cpuconv.reorder(X, "NCHW", "NCHW16c")]


CALLS: dict[str, Callable[[], list[np.ndarray]]] = {
    "a network": lambda: _network(False),
    "a network of int8": lambda: _network(True),
    "conv2d": _conv2d,
    "conv2d of int8": _conv2d_of_integers,
    "plan": _plan,
    "reorder": _reorder,
}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[np.ndarray]]:
    return {name: call() for name, call in CALLS.items()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_results_do_not_follow_the_callers_environment(name, call, expected):
    with environment(ENVIRONMENTS[name]):
        before = control()
        assert before & ENVIRONMENTS[name] == ENVIRONMENTS[name]
        got = CALLS[call]()
        after = control()
    assert after == before
    for array, other in zip(got, expected[call], strict=True):
        assert array.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_runs_of_a_model_made_before(name, expected):
    made = cpuconv.compile(MODELS[0])
    with environment(ENVIRONMENTS[name]):
        got = made.run({"x": X})
    for array, other in zip(got.values(), expected["a network"], strict=True):
        assert array.tobytes() == other.tobytes()


def digests() -> set[str]:
    """Of the results of many runs, in which threads of any environment may take part."""
    made = cpuconv.plan(X.shape, WEIGHTS, padding=1, threads=2)
    return {hashlib.sha256(made(X).tobytes()).hexdigest() for _ in range(200)}


@pytest.mark.skipif(maximum_threads() < 2, reason="no thread would help")
def test_threads_that_start_in_another_environment():
    """A thread begins with the environment of the one that starts it."""
    code = (
        "from runtime.test_float_environment import digests, environment\n"
        "from cpuconv.runtime.threads import pool\n"
        "from support.running.sharing import small_work_is_shared\n"
        "with environment({bits}), small_work_is_shared(): pool(), print(*digests())"
    )
    printed = {run("-c", code.format(bits=bits)).stdout for bits in (0, max(ENVIRONMENTS.values()))}
    assert len({digest for line in printed for digest in line.split()}) == 1


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_default_is_recognised_and_set(name):
    assert is_default()
    with environment(ENVIRONMENTS[name]):
        assert not is_default()
        with default_environment():
            assert is_default()
        assert not is_default()
        with pytest.raises(KeyError), default_environment():
            raise KeyError
        assert not is_default()
    assert is_default()
