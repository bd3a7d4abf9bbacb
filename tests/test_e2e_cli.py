"""The main job: a real ONNX file in, tuned convolutions out, and `conv2d` that uses them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import oracle
import pytest

import cpuconv
from autotune.interpreter import python
from cpuconv import session
from cpuconv.choice.model import applicable
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import Candidate

onnx = pytest.importorskip("onnx")

STEM = ConvProblem(1, 3, 20, 20, 16, 3, 3, (2, 2), (1, 1, 1, 1))
HEAD = ConvProblem(1, 16, 10, 10, 24, 1, 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two convolutions, its inner shapes left to inference."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="stem", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["y"], name="head"),
    ]
    weights = [
        onnx.numpy_helper.from_array(oracle.normal(problem.weight_shape), name)
        for name, problem in (("w1", STEM), ("w2", HEAD))
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", floats, [1, 3, 20, 20])],
        [helper.make_tensor_value_info("y", floats, [1, 24, 10, 10])],
        weights,
    )
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def autotune(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = python("-m", "autotune", *arguments)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_from_a_model_to_conv2d(model, environ, own_store, monkeypatch, no_timing):
    variables = {"AUTOTUNE_WORKLOAD": "cpuconv.tuning.workload:workload", "CPUCONV_CACHE_DIR": str(own_store)}
    environ = {**environ, **variables}
    arguments = ("warmup", str(model), "--effort", "quick", "--budget", "3600", "--threads", "1", "--json")
    first = autotune(environ, *arguments)
    told = json.loads(first.stdout)
    assert (len(told["tuned"]), told["failed"], told["left"]) == (2, [], [])
    assert Path(told["store"]) == own_store / "autotune.sqlite"
    chosen = {line["shape"]: line["algorithm"] for line in told["problems"]}
    assert set(chosen) == {STEM.key, HEAD.key}
    for line in told["problems"]:
        assert line["time_us"] > 0 and line["error"] <= 1e-4
    assert "stem" in first.stderr and "2 tuned" in first.stderr

    again = json.loads(autotune(environ, *arguments).stdout)
    assert (again["tuned"], len(again["resumed"])) == ([], 2)
    assert {line["shape"]: line["algorithm"] for line in again["problems"]} == chosen

    table = autotune(environ, "table").stdout
    for algorithm in chosen.values():
        assert algorithm in table
    assert "tiny" in table
    shown = json.loads(autotune(environ, "show", "--json").stdout)
    assert shown["health"] == "ok" and shown["devices"][0]["finished"] == 2
    explained = json.loads(autotune(environ, "explain", STEM.key, "--threads", "1", "--json").stdout)
    states = {each["candidate"]: each["state"] for each in explained[0]["lines"]}
    assert states[chosen[STEM.key]] == "timed"
    assert {name for name, reason in applicable(STEM) if reason} <= set(states)
    assert not [each for each in explained[0]["lines"] if "wrong" in (each["left_out"] or "")]
    assert chosen[HEAD.key] in autotune(environ, "explain", HEAD.key, "--threads", "1").stdout

    doctor = json.loads(autotune(environ, "doctor", "--measure", "--json").stdout)
    assert doctor["healthy"] and doctor["trouble"] == ""
    for figures in doctor["roofs"].values():
        assert figures["float32_gflops"] > 0 and figures["dram_gbs"] > 0
    assert json.loads(autotune(environ, "doctor", "--json").stdout)["roofs"] == doctor["roofs"]
    assert doctor["workload"]["lanes"] >= 4 and doctor["workload"]["threading_layer"] in (
        "own",
        "omp",
        "tbb",
        "workqueue",
    )
    assert doctor["cache_folder"] == str(own_store)
    (device,) = json.loads(autotune(environ, "table", "--format", "json").stdout)["devices"]
    for line in device["networks"][0]["problems"]:
        assert line["roof_share"] > 0 and line["bound_by"] and line["remedy"]

    # Another process, here: what was found decides, and nothing is timed.
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    session.current.forget_choices()
    for problem in (STEM, HEAD):
        w = oracle.normal(problem.weight_shape)
        options = {"stride": problem.stride, "padding": problem.pads[0], "threads": 1}
        made = cpuconv.plan(problem.in_shape, w, **options)
        assert (made.decided_by, made.algorithm) == ("store", chosen[problem.key])
        told = made.explain()
        assert any(line.measured and line.chosen and line.share for line in told.lines)
        assert told.bound_by and told.remedy in str(told)
        x = oracle.normal(problem.in_shape)
        expected = reference.conv2d(x, w, None, problem)
        assert reference.relative_error(made(x), expected) <= 1e-4
        assert reference.relative_error(cpuconv.conv2d(x, w, **options), expected) <= 1e-4
        assert cpuconv.plan(problem.in_shape, w, strategy="heuristic", **options).decided_by == "model"
        exact = cpuconv.plan(problem.in_shape, w, accuracy="exact", **options)
        assert Candidate.parse(exact.algorithm).accuracy == "exact"
    session.current.forget_choices()


def test_profile_times_what_is_not_stored(own_store, monkeypatch):
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(own_store))
    session.current.forget_choices()
    w = oracle.normal((16, 16, 1, 1))
    shape = (1, 16, 9, 9)
    assert cpuconv.plan(shape, w, threads=1).decided_by == "model"
    made = cpuconv.plan(shape, w, threads=1, strategy="profile")
    assert made.decided_by == "store"
    assert cpuconv.plan(shape, w, threads=1).algorithm == made.algorithm
    assert cpuconv.plan(shape, w, threads=1).decided_by == "store"
    session.current.forget_choices()


def test_sources_that_cannot_be_read(environ, tmp_path):
    command = python("-m", "autotune", "warmup", "--workload", "cpuconv.tuning.workload:workload")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    for source in (str(broken), str(tmp_path), "mb1ic3ih8oc8", "nothing.txt"):
        done = subprocess.run([*command, source], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 2, (source, done.stderr)
        assert done.stderr.startswith("autotune: ") and "Traceback" not in done.stderr
