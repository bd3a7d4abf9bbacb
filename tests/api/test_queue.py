"""Queues, `map`, `submit`, `run_async`, the hint "throughput", and pickles of models."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.api import processes, throughput  # noqa: E402
from cpuconv.runtime import streams  # noqa: E402
from cpuconv.runtime.thread_pool import Helpers  # noqa: E402
from cpuconv.runtime.threads import has_own_threads, maximum_threads, pool  # noqa: E402
from support.graphs import parse  # noqa: E402
from support.running.events import until  # noqa: E402
from support.running.first_calls import ended, forked  # noqa: E402

TEXT = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) <float[4,3,3,3] w> {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    y = Relu(a)
}"""


def proto(batch: str = "N") -> bytes:
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
    made = parse(TEXT.replace("[N,", f"[{batch},"), w=weights)
    return bytes(made.SerializeToString())


@pytest.fixture(scope="module")
def model() -> cpuconv.Model:
    return cpuconv.compile(proto(), threads=1, strategy="heuristic")


def feeds(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1 + at % 3, 3, 8, 8)).astype(np.float32)} for at in range(count)]


def equal(results, model, inputs) -> bool:
    return all(np.array_equal(a["y"], model.run(feed)["y"]) for a, feed in zip(results, inputs, strict=True))


# --- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("streams", [1, 3])
def test_every_run_is_reported_once(model, streams, ordered) -> None:
    inputs, told = feeds(40), []
    with cpuconv.Queue(model, streams, callback=lambda f, tag: told.append((tag, f.result())), ordered=ordered) as q:
        futures = [q.submit(feed, tag) for tag, feed in enumerate(inputs)]
    assert sorted(tag for tag, _ in told) == [*range(40)] and (not ordered or [tag for tag, _ in told] == [*range(40)])
    assert equal([future.result() for future in futures], model, inputs)
    assert equal([outputs for _, outputs in sorted(told, key=lambda each: each[0])], model, inputs)


def test_callbacks_are_in_order_though_runs_end_out_of_order(model, monkeypatch) -> None:
    waits, told, running = [0.05, 0.0, 0.03, 0.0, 0.0], [], threading.Lock()

    def run(feed, stop):
        time.sleep(waits[feed["at"]])
        return {}

    def callback(future, tag):
        assert running.acquire(blocking=False)  # one at a time
        told.append(tag)
        time.sleep(0.005)
        running.release()

    monkeypatch.setattr(model, "run", run)
    with cpuconv.Queue(model, 4, callback=callback, ordered=True) as queue:
        for at in range(5):
            queue.submit({"at": at}, at)
    assert told == [*range(5)]


def test_submit_waits_for_room(model, monkeypatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(model, "run", lambda feed, stop: gate.wait())
    with cpuconv.Queue(model, 1, max_waiting=2) as queue:
        for _ in range(3):  # one runs, two wait
            queue.submit({})
        entered = threading.Event()
        late = threading.Thread(target=lambda: (queue.submit({}), entered.set()))
        late.start()
        assert not entered.wait(0.05)
        gate.set()
        late.join(10)
        assert entered.is_set()


def test_failures_of_runs_and_callbacks_stop_nothing(model, monkeypatch) -> None:
    hooked, told = [], []
    monkeypatch.setattr(threading, "excepthook", lambda given: hooked.append(str(given.exc_value)))

    def callback(future, tag):
        told.append(tag)
        if tag == 1:
            raise RuntimeError("in the callback")

    with cpuconv.Queue(model, 2, callback=callback) as queue:
        right = queue.submit(feeds(1)[0], 0)
        queue.submit(feeds(1)[0], 1)
        wrong = queue.submit({"x": np.zeros((1, 2, 8, 8), np.float32)}, 2)
    assert sorted(told) == [0, 1, 2] and hooked == ["in the callback"]
    assert right.result()["y"].shape == (1, 4, 8, 8)
    with pytest.raises(cpuconv.ArgumentError, match="'x'"):
        wrong.result()


def test_closing_drops_what_waits_and_stops_what_runs(model, monkeypatch) -> None:
    begun = threading.Event()

    def run(feed, stop):
        begun.set()
        until(stop)
        raise cpuconv.RunStopped("stopped")

    monkeypatch.setattr(model, "run", run)
    queue = cpuconv.Queue(model, 1)
    first, second = queue.submit({}), queue.submit({})
    assert begun.wait(10)
    queue.close(cancel=True)
    assert second.cancelled() and isinstance(first.exception(), cpuconv.RunStopped)
    with pytest.raises(cpuconv.ArgumentError, match="submit"):
        queue.submit({})


def test_sixteen_callers(model) -> None:
    inputs = feeds(8)
    results: list = [None] * 16
    with cpuconv.Queue(model, 2) as queue:

        def call(at: int) -> None:
            results[at] = [queue.submit(feed).result() for feed in inputs]

        callers = [threading.Thread(target=call, args=(at,)) for at in range(16)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
    assert all(equal(each, model, inputs) for each in results)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"streams": 0}, "streams"), ({"max_waiting": 0}, "max_waiting"), ({"callback": 3}, "callback")],
)
def test_wrong_arguments_are_named(model, options, named) -> None:
    with pytest.raises((cpuconv.ArgumentError, cpuconv.ArgumentTypeError), match=f"'{named}'"):
        cpuconv.Queue(model, **options)
    with pytest.raises(cpuconv.ArgumentTypeError, match="'model'"):
        cpuconv.Queue("net.onnx")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_of_fork_has_none_of_the_runs(model, monkeypatch) -> None:
    """The queue has no room left when the process forks; the child's runs do not wait for those of the parent."""
    gate, right = threading.Event(), model.run(feeds(1)[0])["y"]
    plain = cpuconv.Model.run
    monkeypatch.setattr(model, "run", lambda feed, stop: plain(model, feed) if feed else gate.wait())

    def body() -> None:
        assert np.array_equal(queue.submit(feeds(1)[0]).result(30)["y"], right)
        queue.close()

    with cpuconv.Queue(model, 1, max_waiting=1, ordered=True) as queue:
        queue.submit({})
        queue.submit({})
        end = ended(forked(body), 40.0)
        gate.set()
    assert end == ""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinities")
@pytest.mark.parametrize(("pin", "own"), [(1, True), (2, True), (3, False), (0, False)])
def test_pinned_streams_have_cores_of_their_own(monkeypatch, pin: int, own: bool) -> None:
    """Two streams and their helping threads on four cores, each simulated by one of this process."""
    allowed, gate, starting = os.sched_getaffinity(0), threading.Barrier(2), threading.Lock()
    first, last = min(allowed), max(allowed)
    monkeypatch.setattr(streams, "_cores", lambda: [first, first, last, last])
    shared = pool()
    if shared.layer != "own":
        pytest.skip("a layer of Numba has no threads per stream")

    def affinities() -> list[frozenset[int]]:
        with starting:
            before = {*os.listdir("/proc/self/task")}
            assert (pool() is shared) is not own
            tasks = [0, *map(int, {*os.listdir("/proc/self/task")} - before)]
        gate.wait(10)
        return [frozenset(os.sched_getaffinity(task)) for task in tasks]

    background = streams.Streams(2, pin=pin)
    with starting:  # both threads start first
        futures = [background.submit(affinities) for _ in range(2)]
    found = [future.result() for future in futures]
    if own:
        assert sorted(found, key=str) == sorted([[frozenset({core})] * pin for core in (first, last)], key=str)
    else:
        assert found == [[allowed]] * 2
    assert os.sched_getaffinity(0) == allowed and pool() is shared
    tasks = len(os.listdir("/proc/self/task"))
    del background
    until(lambda: len(os.listdir("/proc/self/task")) == tasks - (2 * pin if own else 2))  # helping threads end, too


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinities")
def test_streams_of_two_threads_run_on_their_own_threads(monkeypatch) -> None:
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(streams, "_cores", lambda: [core] * 4)
    two, inputs = cpuconv.compile(proto(), threads=2, strategy="heuristic"), feeds(20)
    with cpuconv.Queue(two, 2) as queue:
        assert equal([future.result() for future in [queue.submit(feed) for feed in inputs]], two, inputs)
        assert (queue._streams.submit(pool).result() is not pool()) is has_own_threads()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinities")
def test_a_child_of_fork_does_not_end_threads_of_the_parent(monkeypatch) -> None:
    core, closed, close = min(os.sched_getaffinity(0)), [], Helpers.close
    monkeypatch.setattr(streams, "_cores", lambda: [core] * 2)
    monkeypatch.setattr(Helpers, "close", lambda self, process: closed.append(self) or close(self, process))
    background = streams.Streams(1, pin=2)
    own = background.submit(pool).result()

    def body() -> None:
        assert own not in closed  # other tests' streams may have ended meanwhile

    assert ended(forked(body), 20.0) == ""
    del background


# --- map, submit, asyncio ---------------------------------------------------------------------------------------------


def test_map_keeps_the_order_and_reports_failures(model) -> None:
    inputs, done = feeds(20), []
    assert equal(cpuconv.map(model, inputs, streams=3, progress=lambda *each: done.append(each)), model, inputs)
    assert done == [(at, 20) for at in range(1, 21)]
    wrong = {"x": np.zeros((1, 2, 8, 8), np.float32)}
    with pytest.warns(cpuconv.CpuconvWarning, match="input 1 failed: .*'x'"):
        first, failed, last = cpuconv.map(model, iter([inputs[0], wrong, inputs[2]]))
    assert isinstance(failed, cpuconv.Failed) and failed.index == 1 and isinstance(failed.error, cpuconv.ArgumentError)
    assert equal([first, last], model, [inputs[0], inputs[2]])


def test_map_reads_a_few_inputs_ahead(model) -> None:
    read = []

    def endless():
        while True:
            read.append(None)
            yield feeds(1)[0]

    results = cpuconv.map(model, endless(), streams=2)
    for _ in range(3):
        next(results)
    assert len(read) <= 3 + 4
    results.close()
    assert list(cpuconv.map(model, [])) == []


def test_map_in_processes(tmp_path: Path) -> None:
    """One input fails, another ends its process, twice; all others have their results."""
    path = tmp_path / "net.onnx"
    path.write_bytes(proto())
    model = cpuconv.compile(path, threads=1, strategy="heuristic")
    inputs: list = [*feeds(6), {"x": np.zeros((1, 2, 8, 8), np.float32)}, Fatal({}), *feeds(2)]
    done: list = []
    with pytest.warns(cpuconv.CpuconvWarning, match="input [67] failed: .*('x'|process)"):
        results = [*cpuconv.map(model, inputs, workers=1, progress=lambda *each: done.append(each))]
    assert done == [(at, 10) for at in range(1, 11)]
    assert [at for at, each in enumerate(results) if isinstance(each, cpuconv.Failed)] == [6, 7]
    assert isinstance(results[6].error, cpuconv.ArgumentError) and "process ended" in str(results[7].error)
    kept = [at for at in range(10) if at not in (6, 7)]
    assert equal([results[at] for at in kept], model, [inputs[at] for at in kept])
    with pytest.raises(cpuconv.ArgumentError, match="'streams'"):
        cpuconv.map(model, inputs, workers=2, streams=2)
    with pytest.raises(TypeError, match="save"):
        cpuconv.map(cpuconv.compile(onnx.load_from_string(proto())), inputs, workers=1)


class Fatal(dict):
    """A feed that ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (9,)


def test_a_child_of_fork_has_all_processes(tmp_path: Path) -> None:
    """Those that the parent's runs occupy, too; none is started here."""
    path = tmp_path / "net.onnx"
    path.write_bytes(proto())
    with processes.ProcessQueue(cpuconv.compile(path, threads=1, strategy="heuristic"), 2, False) as queue:
        queue._free.get()
        queue._begin()
        assert queue._free.qsize() == 2


def test_cores_of_processes() -> None:
    assert streams.shares([1, 2, 5, 6, 7], 2) == [[1, 2], [5, 6, 7]]
    assert streams.shares([3, 4], 3) == [[3], [4], [3]]
    assert streams.shares([], 2) == [(), ()]


def test_joblib(model) -> None:
    joblib = pytest.importorskip("joblib")
    inputs = feeds(4)
    again = cpuconv.compile(proto(), threads=1, strategy="heuristic")
    made = joblib.Parallel(n_jobs=2)(joblib.delayed(again.run)(feed) for feed in inputs)
    assert equal(made, model, inputs)


def test_submit_and_coroutines(model) -> None:
    inputs = feeds(6)
    assert equal([future.result() for future in [model.submit(feed) for feed in inputs]], model, inputs)

    async def gathered():
        return await asyncio.gather(*(model.run_async(feed) for feed in inputs))

    async def queued():
        async with cpuconv.Queue(model, 1, max_waiting=1) as queue:
            return await asyncio.gather(*(queue.run_async(feed) for feed in inputs))

    for made in (gathered, queued):
        assert equal(asyncio.run(made()), model, inputs)
    with pytest.raises(cpuconv.ArgumentError, match="'x'"):
        model.submit({"x": np.zeros((1, 2, 8, 8), np.float32)}).result()


# --- the hint ---------------------------------------------------------------------------------------------------------


def test_the_hint_selects_the_highest_throughput(monkeypatch) -> None:
    monkeypatch.setattr("cpuconv.api.throughput.thread_counts", lambda cores: [1, 2, 4])
    made: dict[int, cpuconv.Model] = {}

    def compile_for(count: int) -> cpuconv.Model:
        made[count] = cpuconv.compile(proto("2"), threads=1, strategy="heuristic")
        return made[count]

    per_second = {4: 10.0, 2: 30.0, 1: 20.0}
    monkeypatch.setattr(throughput, "_runs_per_second", lambda queue, feed, seconds: per_second[queue_count(queue)])

    def queue_count(queue: cpuconv.Queue) -> int:
        return 4 // queue.streams

    best = throughput.most_runs_per_second(compile_for, 4)
    assert best is made[2] and best.streams == 2
    assert throughput.most_runs_per_second(lambda count: cpuconv.compile(proto(), threads=1), 4).streams == 4  # open


def test_the_hint_of_compile(model) -> None:
    made = cpuconv.compile(proto("2"), hint="throughput", strategy="heuristic")
    assert made.threads * made.streams <= maximum_threads() and made.streams >= 1
    feed = feeds(2)[1]
    np.testing.assert_allclose(made.run(feed)["y"], model.run(feed)["y"], atol=1e-5)
    with pytest.raises(cpuconv.ArgumentError, match="'hint'"):
        cpuconv.compile(proto(), hint="speed")  # type: ignore[arg-type]


# --- pickles ----------------------------------------------------------------------------------------------------------


def test_a_model_pickles_as_the_call_that_made_it(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(proto())
    monkeypatch.chdir(tmp_path)
    options = {"threads": 1, "strategy": "heuristic"}
    cpuconv.compile("net.onnx", **options).save("net.cpuconv")
    models = [cpuconv.compile("net.onnx", **options), cpuconv.compile(proto(), **options), cpuconv.load("net.cpuconv")]
    monkeypatch.chdir("/")  # a pickle holds the absolute path
    feed = feeds(1)[0]
    for made in models:
        again = pickle.loads(pickle.dumps(made))
        assert again.threads == made.threads
        np.testing.assert_array_equal(again.run(feed)["y"], made.run(feed)["y"])
        assert pickle.loads(pickle.dumps(made)) is again  # one task after another


def test_what_does_not_pickle_says_what_does() -> None:
    with pytest.raises(TypeError, match="save"):
        pickle.dumps(cpuconv.compile(onnx.load_from_string(proto())))
