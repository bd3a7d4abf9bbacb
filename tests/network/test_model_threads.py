"""`threads="auto"` for networks: what decides, and that it is kept to."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
from cpuconv.cli.main import main
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.integrations.inference_session import InferenceSession, SessionOptions
from cpuconv.network import program_builder, thread_count
from cpuconv.runtime.threads import maximum_threads, set_num_threads
from support.graphs import close, parse, programs_of, run

SMALL = """g (float[1,3,4,4] x) => (float[1,3,4,4] y) { y = Relu(x) }"""
OPEN = """g (float[N,3,H,64] x) => (float[N,3,H,64] y) {
    a = Sigmoid(x)
    y = Tanh(a)
}"""
two_cores = pytest.mark.skipif(maximum_threads() < 2, reason="there is one core")


def _feed(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}


def test_a_small_network_takes_one_thread():
    made = cpuconv.compile(parse(SMALL), threads="auto")
    assert made.threads == 1
    np.testing.assert_array_equal(made.run(_feed(1, 3, 4, 4))["y"], run(parse(SMALL), _feed(1, 3, 4, 4))[0])


@two_cores
def test_sizes_decide():
    made = cpuconv.compile(parse(OPEN), threads="auto")
    for sizes, threads in (((1, 3, 2, 64), 1), ((8, 3, 512, 64), maximum_threads()), ((1, 3, 2, 64), 1)):
        feed = _feed(*sizes)
        close(made.run(feed)["y"], run(parse(OPEN), feed)[0])
        assert made.threads == threads, sizes


@two_cores
@pytest.mark.parametrize("fastest", [1, 2])
def test_strategy_profile_takes_what_was_faster(monkeypatch, fastest):
    monkeypatch.setattr(thread_count, "thread_counts", lambda most: [1, 2])
    monkeypatch.setattr(thread_count, "timed", lambda programs: {n: 1.0 + (n != fastest) for n in programs})
    assert cpuconv.compile(parse(SMALL), threads="auto", strategy="profile").threads == fastest


def test_programs_are_timed_on_their_own_inputs():
    made = programs_of(cpuconv.compile(parse(SMALL), threads=1)).last.executable
    assert 0 < thread_count.timed({1: made})[1] < 1


def test_the_users_default_counts(default_threads, monkeypatch):
    monkeypatch.setattr(program_builder, "fastest", lambda *_: pytest.fail("a number was asked for"))
    assert cpuconv.compile(parse(SMALL)).threads == maximum_threads()
    monkeypatch.undo()
    set_num_threads("auto")
    assert cpuconv.compile(parse(SMALL)).threads == 1


def test_wrong_counts_are_refused():
    with pytest.raises(ArgumentTypeError, match="'threads' must be an integer, 'auto' or None, not 'all'"):
        cpuconv.compile(parse(SMALL), threads="all")
    with pytest.raises(ArgumentError, match="'threads' must be 1 or more, not 0"):
        cpuconv.compile(parse(SMALL), threads=0)


def test_session_and_command(tmp_path, capsys):
    path = tmp_path / "small.onnx"
    path.write_bytes(parse(SMALL).SerializeToString())
    options = SessionOptions()
    options.intra_op_num_threads = "auto"
    session = InferenceSession(str(path), options)
    assert session._model.threads == 1
    assert main(["run", str(path), "--threads", "auto"]) == 0
    assert "on 1 thread" in capsys.readouterr().out
