"""The main job: a real ONNX file in, tuned convolutions out, and `conv2d` that uses them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import cpuconv
from autotune.cli.main import main
from autotune.cli.options import OK, USAGE
from cpuconv.conv.choice.model import applicable
from cpuconv.conv.recipe import Candidate
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from support import oracle
from support.models import conv, save
from support.running.processes import run

onnx = pytest.importorskip("onnx")

STEM = ConvProblem(1, 3, 20, 20, 16, 3, 3, (2, 2), (1, 1, 1, 1))
HEAD = ConvProblem(1, 16, 10, 10, 24, 1, 1)
LAYOUTS = "--layouts", "NCHW,NCHW"  # the convolutions alone, as `conv2d` asks for them


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A network of two convolutions, its inner shapes left to inference."""
    nodes = [
        conv("x", "w1", "a", name="stem", strides=[2, 2], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        conv("b", "w2", "y", name="head"),
    ]
    weights = {"w1": STEM.weight_shape, "w2": HEAD.weight_shape}
    return save(tmp_path / "tiny.onnx", nodes, {"x": STEM.in_shape}, weights)


def test_from_a_model_to_conv2d(model, our_store, monkeypatch, capsys, no_timing):
    """Tuned in another process; here what it found decides, and nothing is timed."""
    monkeypatch.setenv("AUTOTUNE_WORKLOAD", "cpuconv.tuning.workload:workload")
    arguments = ("warmup", model, "--effort", "quick", "--budget", "3600", "--threads", "1", *LAYOUTS, "--json")
    first = run("-m", "autotune", *arguments)
    outcome = json.loads(first.stdout)
    assert (len(outcome["tuned"]), outcome["failed"], outcome["left"]) == (2, [], [])
    assert Path(outcome["store"]) == our_store.path
    chosen = {line["shape"]: line["algorithm"] for line in outcome["problems"]}
    assert set(chosen) == {STEM.key, HEAD.key}
    for line in outcome["problems"]:
        assert line["time_us"] > 0 and line["error"] <= 1e-4
    assert "stem" in first.stderr and "2 tuned" in first.stderr

    def printed(*arguments: str) -> dict:
        assert main([*arguments, "--json"]) == OK
        return json.loads(capsys.readouterr().out)

    again = printed(*arguments[:-1])
    assert (again["tuned"], len(again["resumed"])) == ([], 2)
    assert {line["shape"]: line["algorithm"] for line in again["problems"]} == chosen
    (explained,) = printed("explain", STEM.key, "--threads", "1")
    states = {line["candidate"]: line["state"] for line in explained["lines"]}
    assert states[chosen[STEM.key]] == "timed"
    assert {name for name, reason in applicable(STEM) if reason} <= set(states)
    assert not [line for line in explained["lines"] if "wrong" in (line["left_out"] or "")]
    doctor = printed("doctor", "--measure")
    assert doctor["healthy"] and doctor["trouble"] == ""
    for figures in doctor["roofs"].values():
        assert figures["float32_gflops"] > 0 and figures["dram_gbs"] > 0
    assert doctor["workload"]["lanes"] >= 4
    products = r"f32:f32 by fma, bf16:bf16 by \w+.*, f16:f16 by \w+, u8:s8 by \w+.*, s8:s8 by \w+"
    assert re.match(products, doctor["workload"]["products"])
    assert doctor["workload"]["threading_layer"] in ("own", "omp", "tbb", "workqueue")
    assert doctor["cache_folder"] == str(our_store.path.parent)
    assert main(["table", "--format", "json"]) == OK
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    (network,) = device["networks"]
    assert network["name"].startswith("tiny, ") and {line["algorithm"] for line in network["problems"]} == {
        *chosen.values()
    }
    for line in network["problems"]:
        assert line["roof_share"] > 0 and line["bound_by"] and line["remedy"]

    for problem in (STEM, HEAD):
        w = oracle.normal(problem.weight_shape)
        options = {"stride": problem.stride, "padding": problem.pads[0], "threads": 1}
        made = cpuconv.plan(problem.in_shape, w, **options)
        assert (made.decided_by, made.algorithm) == ("store", chosen[problem.key])
        account = made.explain()
        assert any(line.measured and line.chosen and line.share for line in account.lines)
        assert account.bound_by and account.remedy in str(account)
        x = oracle.normal(problem.in_shape)
        expected = reference.conv2d(x, w, None, problem)
        assert reference.relative_error(made(x), expected) <= 1e-4
        assert reference.relative_error(cpuconv.conv2d(x, w, **options), expected) <= 1e-4
        assert cpuconv.plan(problem.in_shape, w, strategy="heuristic", **options).decided_by == "model"
        exact = cpuconv.plan(problem.in_shape, w, accuracy="exact", **options)
        assert Candidate.parse(exact.algorithm).accuracy == "exact"


def test_profile_times_what_is_not_stored(our_store):
    w = oracle.normal((16, 16, 1, 1))
    shape = (1, 16, 9, 9)
    assert cpuconv.plan(shape, w, threads=1).decided_by == "model"
    made = cpuconv.plan(shape, w, threads=1, strategy="profile")
    assert made.decided_by == "store"
    assert cpuconv.plan(shape, w, threads=1).algorithm == made.algorithm
    assert cpuconv.plan(shape, w, threads=1).decided_by == "store"


def test_sources_that_cannot_be_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AUTOTUNE_WORKLOAD", "cpuconv.tuning.workload:workload")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    for source in (str(broken), str(tmp_path), "mb1ic3ih8oc8", "nothing.txt"):
        assert main(["warmup", source]) == USAGE
        assert capsys.readouterr().err.startswith("autotune: ")


def test_a_list_in_other_types(tmp_path, our_store, monkeypatch, no_timing):
    """What a warmup finds for integers decides for their calls, and for no others."""
    monkeypatch.setenv("AUTOTUNE_WORKLOAD", "cpuconv.tuning.workload:workload")
    source = tmp_path / "list.txt"
    source.write_text("ic24ih9oc40oh9kh1\n")
    arguments = ("warmup", source, "--types", "u8", "--effort", "quick", "--threads", "1", "--no-roofs", "--json")
    (line,) = json.loads(run("-m", "autotune", *map(str, arguments)).stdout)["problems"]
    assert "--dt=u8:s8:u8" in line["shape"] and line["error"] == 0 and line["time_us"] > 0
    x, w = np.ones((1, 24, 9, 9), np.uint8), np.ones((40, 24, 1, 1), np.int8)
    scales = cpuconv.Quantization(x_scale=1, w_scale=1, y_scale=1)
    plan = cpuconv.plan(x.shape, w, quantization=scales, threads=1)
    assert (plan.decided_by, plan.algorithm) == ("store", line["algorithm"])
    assert (plan(x) == 24).all()
    for other in ({"x_dtype": "int8"}, {"y_dtype": "float32"}):
        assert cpuconv.plan(x.shape, w, quantization=scales, threads=1, **other).decided_by != "store"
