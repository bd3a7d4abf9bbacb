"""Runs that are ended: by a function that is asked between kernels, by ONNX Runtime's `terminate`, by Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import ArgumentTypeError, RunStopped
from cpuconv.network.running import recording
from cpuconv.network.running.recording import Recording
from support.graphs import parse, programs_of
from support.running import processes

pytestmark = pytest.mark.filterwarnings("ignore:.*reference evaluator:cpuconv.CpuconvWarning")

ENDLESS = """g (float[1] x) => (float[1] y, float[1] z) <float[1] one = {1}, bool go = {1}> {
    start = Relu(x)
    y = Loop<body = b (int64 i, bool c, float[1] a) => (bool d, float[1] e) { d = Identity(c) e = Add(a, one) }>
        (, go, start)
    z = Sqrt(y)
}"""
COUNTED = ENDLESS.replace("float[1] x)", "float[1] x, int64 n)").replace("(, go, start)", "(n, go, start)")
SCAN = """g (float[N,1] x) => (float[1] y, float[N,1] z) {
    start = ReduceMax<axes = [0], keepdims = 0>(x)
    y, z = Scan<num_scan_inputs = 1, body = b (float[1] a, float[1] v) => (float[1] e, float[1] w)
        { e = Add(a, v) w = Identity(e) }>(start, x)
}"""
# What follows depends on sizes that are found: references run it behind the program, and a network of its own.
TAIL = """g (float[1,1,8,8] x) => (float[] y, int64[] places) <float[1,1,1,1] w = {2}, int64[4] s = {1,1,1,-1}> {
    places = NonZero(x)
    found = Cast<to = 1>(places)
    line = Reshape(found, s)
    y = Conv(line, w)
}"""
ONE = {"x": np.ones(1, np.float32)}


def _compiled(text: str, **options: Any) -> cpuconv.Model:
    return cpuconv.compile(parse(text), strategy="heuristic", **options)


class Asked:
    """A `stop` that says so when it is asked for the given time."""

    def __init__(self, last: int) -> None:
        self.last, self.times = last, 0

    def __call__(self) -> bool:
        self.times += 1
        return self.times >= self.last


@pytest.fixture(scope="module")
def deep() -> tuple[bytes, dict[str, np.ndarray]]:
    """A model of several kernels, and its feed."""
    text = """g (float[1,16,32,32] x) => (float[1,16,32,32] y) {
        a = Conv<pads = [1,1,1,1]>(x, w)
        b = Conv<pads = [1,1,1,1]>(a, w)
        c = Conv<pads = [1,1,1,1]>(b, w)
        y = Conv<pads = [1,1,1,1]>(c, w)
    }"""
    rng = np.random.default_rng(0)
    made = parse(text, w=(0.1 * rng.standard_normal((16, 16, 3, 3))).astype(np.float32))
    return made.SerializeToString(), {"x": rng.standard_normal((1, 16, 32, 32), dtype=np.float32)}


@pytest.fixture
def sliced(deep: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[cpuconv.Model, dict[str, np.ndarray]]:
    """It in slices of one row."""
    monkeypatch.setattr(recording, "_SLICE_SECONDS", 0.0)
    source, feed = deep
    return cpuconv.compile(source, strategy="heuristic", threads=1), feed


def _rows(made: cpuconv.Model) -> int:
    (segment,) = programs_of(made).last.executable.segments
    assert isinstance(segment, Recording)
    return len(segment.words.codes)


# --- between kernels ------------------------------------------------------------------------------------------------


def test_rows_are_cut_by_the_time_that_they_take() -> None:
    cut = recording.slices
    limit = recording._SLICE_SECONDS
    assert cut([]) == cut([limit / 8] * 8) == cut([5 * limit]) == []
    assert cut([limit / 2] * 5) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert cut([0, 3 * limit, 0.1 * limit, 0.2 * limit]) == [slice(0, 2), slice(2, 4)]


def test_a_run_in_slices_gives_the_same(deep: Any, sliced: Any) -> None:
    source, feed = deep
    whole = cpuconv.compile(source, strategy="heuristic", threads=1).run(feed)["y"]
    made, feed = sliced
    np.testing.assert_array_equal(made.run(feed)["y"], whole)
    np.testing.assert_array_equal(made.run(feed, stop=lambda: False)["y"], whole)


def test_a_run_ends_between_any_two_kernels(sliced: Any) -> None:
    made, feed = sliced
    expected, before = made.run(feed)["y"], made.nbytes
    for last in range(1, _rows(made) + 2):  # before the program, and before each row of it
        asked = Asked(last)
        with pytest.raises(RunStopped, match="stop"):
            made.run(feed, stop=asked)
        assert asked.times == last
        np.testing.assert_array_equal(made.run(feed)["y"], expected)
    asked = Asked(_rows(made) + 2)
    np.testing.assert_array_equal(made.run(feed, stop=asked)["y"], expected)
    assert asked.times == _rows(made) + 1 and made.nbytes == before


@pytest.mark.parametrize("in_main", [True, False])
def test_only_who_can_be_stopped_runs_in_slices(sliced: Any, in_main: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread, for Ctrl-C, and who has a `stop`; others ask for the interpreter's lock once."""
    made, feed = sliced
    made.run(feed)
    rows: list[int] = []
    program = recording.runtime.Program
    run = program.run
    monkeypatch.setattr(program, "run", lambda self: (rows.append(len(self._table)), run(self))[1])

    def go(**options: Any) -> list[int]:
        rows.clear()
        if in_main:
            made.run(feed, **options)
        else:
            thread = threading.Thread(target=made.run, args=(feed,), kwargs=options)
            thread.start()
            thread.join()
        return list(rows)

    one_each, whole = [1] * _rows(made), [_rows(made)]
    assert go() == (one_each if in_main else whole)
    assert go(stop=lambda: False) == one_each


def test_short_programs_run_in_one_piece(deep: Any) -> None:
    source, feed = deep
    made = cpuconv.compile(source, strategy="heuristic", threads=1)
    made.run(feed)
    (segment,) = programs_of(made).last.executable.segments
    assert segment.slices == []


def test_what_stop_may_be(sliced: Any) -> None:
    made, feed = sliced
    with pytest.raises(ArgumentTypeError, match="'stop' must be a callable"):
        made.run(feed, stop=threading.Event())


# --- between nodes that references compute ---------------------------------------------------------------------------


def test_a_loop_without_end_is_left() -> None:
    made = _compiled(ENDLESS)
    for last in (1, 2, 3, 50):
        asked = Asked(last)
        with pytest.raises(RunStopped):
            made.run(ONE, stop=asked)
        assert asked.times == last
    over = threading.Event()
    threading.Timer(0.2, over.set).start()
    with pytest.raises(RunStopped):
        made.run(ONE, stop=over.is_set)


@pytest.mark.parametrize(
    ("text", "feed"),
    [(COUNTED, {**ONE, "n": np.array(9)}), (SCAN, {"x": np.ones((9, 1), np.float32)})],
    ids=["Loop", "Scan"],
)
def test_bodies_are_left_between_any_two_iterations(text: str, feed: dict[str, np.ndarray]) -> None:
    made = _compiled(text)
    expected = made.run(feed)
    asked = Asked(1 << 30)
    made.run(feed, stop=asked)
    assert asked.times > 9
    for last in range(1, asked.times + 1):
        with pytest.raises(RunStopped):
            made.run(feed, stop=Asked(last))
    for name, array in made.run(feed).items():
        np.testing.assert_array_equal(array, expected[name])


def test_what_runs_behind_a_program_is_left() -> None:
    made = _compiled(TAIL)
    feed = {"x": np.eye(8, dtype=np.float32)[None, None]}
    expected = made.run(feed)
    asked = Asked(1 << 30)
    made.run(feed, stop=asked)
    assert asked.times >= 3  # between kernels of the program, and before and after the nodes behind it
    for last in range(1, asked.times + 1):
        before = made.nbytes
        with pytest.raises(RunStopped):
            made.run(feed, stop=Asked(last))
        assert made.nbytes == before
    for name, array in made.run(feed).items():
        np.testing.assert_array_equal(array, expected[name])


# --- ONNX Runtime's interface ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endless() -> cpuconv.InferenceSession:
    return cpuconv.InferenceSession(parse(COUNTED).SerializeToString())


def _options(theirs: bool) -> Any:
    return pytest.importorskip("onnxruntime").RunOptions() if theirs else cpuconv.RunOptions()


@pytest.mark.parametrize("theirs", [False, True])
def test_terminate_ends_the_runs_that_have_these_options(endless: cpuconv.InferenceSession, theirs: bool) -> None:
    options, heard, all_heard = _options(theirs), [], threading.Semaphore(0)
    long, short = {**ONE, "n": np.array(1 << 60)}, {**ONE, "n": np.array(3)}

    def callback(results: list, data: int, error: str) -> None:
        heard.append((results, error))
        all_heard.release()

    runs: list[Callable[[Any], object]] = [
        lambda options: endless.run(None, long, options),
        lambda options: endless.run_with_ort_values(None, long, options),
        lambda options: endless.run_with_iobinding(bound, options),
    ]
    bound = endless.io_binding()
    for name, array in long.items():
        bound.bind_cpu_input(name, array)
    bound.bind_output("y")
    for run in runs:
        options.terminate = False
        threading.Timer(0.1, setattr, (options, "terminate", True)).start()
        with pytest.raises(RunStopped, match="Exiting due to terminate flag being set to true"):
            run(options)
    with pytest.raises(RunStopped):
        endless.run(None, short, options)
    options.terminate = False
    endless.run_async(None, long, callback, 0, options)
    endless.run_async(None, long, callback, 0, options)
    options.terminate = True
    for _ in range(2):
        all_heard.acquire()
    assert [results for results, _ in heard] == [[], []] and all("terminate" in error for _, error in heard)
    other = _options(theirs)
    assert endless.run(["y"], short, other)[0] == endless.run(["y"], short)[0] == 4


def test_a_terminated_run_raises_what_onnx_runtime_raises(endless: cpuconv.InferenceSession) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    options = onnxruntime.RunOptions()
    options.terminate = True
    source = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=15).SerializeToString()
    feed = {"x": np.ones(2, np.float32)}
    told = []
    for kind in (onnxruntime.InferenceSession, cpuconv.InferenceSession):
        with pytest.raises(Fail) as caught:
            kind(source, providers=["CPUExecutionProvider"]).run(None, feed, options)
        told.append(str(caught.value))
    assert told[0] == told[1]
    ours = vars(cpuconv.RunOptions()).keys()
    assert {name for name in dir(options) if not name.startswith("_")} - {"add_active_adapter"} <= {
        *ours, *dir(cpuconv.RunOptions)
    }  # fmt: skip


def test_entries_of_run_options_are_kept() -> None:
    options = cpuconv.RunOptions()
    options.add_run_config_entry("a", "b")
    assert options.get_run_config_entry("a") == "b"
    with pytest.raises(cpuconv.ArgumentError, match="'key'"):
        options.get_run_config_entry("c")


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------

_CHILD = """
import signal, sys, time, warnings
import numpy as np
import cpuconv
from support.graphs import parse, programs_of

sys.path.insert(0, {folder!r})
import test_stopping as tests

warnings.simplefilter("ignore")
made = cpuconv.compile(parse(tests.{text}), strategy="heuristic", threads=1)
feed = {feed}
{body}
"""
_ENDLESS = """
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
try:
    made.run(feed)
except KeyboardInterrupt:
    print("interrupted")
"""
_LONG = """
expected = made.run(feed)
begun = time.process_time()
made.run(feed)
usual = time.process_time() - begun

signal.signal(signal.SIGVTALRM, signal.default_int_handler)  # as Ctrl-C, after some time on the CPU
begun = time.process_time()
signal.setitimer(signal.ITIMER_VIRTUAL, usual / 8)
try:
    made.run(feed)
except KeyboardInterrupt:
    print("interrupted", (time.process_time() - begun) / usual)
got = made.run(feed)
print(all(np.array_equal(got[name], expected[name]) for name in got))
"""


def many_products(count: int = 64) -> str:
    """As many products of matrices that are known when the network runs: a second of kernels, one after the other."""
    nodes = "\n".join(f"y{at} = MatMul(x{at}, x)\nx{at + 1} = Softmax(y{at})" for at in range(count))
    return f"g (float[1024,1024] x) => (float[1024,1024] x{count}) {{ x0 = Relu(x)\n{nodes} }}"


def test_ctrl_c_ends_a_loop_without_end() -> None:
    child = processes.start(
        "-c", _CHILD.format(folder=str(Path(__file__).parent), text="ENDLESS", feed="tests.ONE", body=_ENDLESS)
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert processes.finish(child).stdout == "interrupted\n"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")
def test_ctrl_c_ends_a_long_program_before_its_end() -> None:
    """A signal that comes while kernels run is handled between two of them, not when the last is done."""
    feed = "{'x': np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)}"
    told = processes.run(
        "-c", _CHILD.format(folder=str(Path(__file__).parent), text="many_products()", feed=feed, body=_LONG)
    ).stdout.split()
    how, share, equal = told
    assert how == "interrupted" and float(share) < 0.6 and equal == "True"
