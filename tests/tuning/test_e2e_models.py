"""`autotune warmup MODEL` tunes what `compile(MODEL)` asks for, and `strategy="profile"` what nobody tuned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.running.processes import run

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from autotune.cli.main import main  # noqa: E402
from autotune.cli.options import OK, USAGE  # noqa: E402
from autotune.machine.device import fingerprint  # noqa: E402
from cpuconv.conv import session  # noqa: E402
from cpuconv.problem.problem import ConvProblem  # noqa: E402
from support.graphs import close, parse, programs_of  # noqa: E402
from support.graphs import run as interpreted  # noqa: E402

TEXT = """g (float[{n},3,{h},8] x) => (float[{n},20,{h},8] y) {{
    a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1]>(b, w2)
    d = Add(c, b)
    e = Relu(d)
    y = Conv(e, w3)
}}"""
WEIGHTS = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "w3": (20, 16, 1, 1)}
DEVICE = fingerprint().key
QUICK = ("--effort", "quick", "--threads", "1", "--no-roofs", "--no-race", "--json")


def network(n: int | str = 1, h: int | str = 8) -> onnx.ModelProto:
    """A residual block and a convolution behind it."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in WEIGHTS.items()}
    return parse(TEXT.format(n=n, h=h), **weights)


def save(folder: Path, *sizes: int | str) -> str:
    path = folder / "net.onnx"
    onnx.save(network(*sizes), path)
    return str(path)


@pytest.fixture
def warmed(our_store, monkeypatch, capsys):
    """Tunes a file as the command does; gives what it says."""
    monkeypatch.setenv("AUTOTUNE_WORKLOAD", "cpuconv.tuning.workload:workload")

    def warm(path: str, *options: str) -> dict:
        capsys.readouterr()
        assert main(["warmup", path, *QUICK, *options]) == OK
        told = capsys.readouterr()
        return {**json.loads(told.out), "said": told.err}

    return warm


def asked(path: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> set[str]:
    """The problems that `compile` asks solvers for: what a session without a store decides of."""
    with monkeypatch.context() as patch:
        seen = session.Session(tables=Path(path).parent / "none", persistent=False)
        patch.setattr(session, "current", seen)
        model = cpuconv.compile(path, threads=1, **options)
        made = programs_of(model).last.executable
        details = [work.node_plan.offer.detail for work in made.operations if work.node_plan.offer is not None]
        return {detail.problem.key for detail in details if hasattr(detail, "problem")}


def test_from_a_model_to_a_network(tmp_path, warmed, our_store, monkeypatch, no_timing):
    """In another process; here the same problems are found tuned, and nothing is timed."""
    path = save(tmp_path)
    wanted = asked(path, monkeypatch)
    monkeypatch.setenv("AUTOTUNE_WORKLOAD", "cpuconv.tuning.workload:workload")
    first = run("-m", "autotune", "warmup", path, *QUICK)
    tuned = json.loads(first.stdout)["tuned"]
    assert len(tuned) == len(our_store.tuned(DEVICE)) and "net, 1 thread: " in first.stderr
    # Those of a plan that the model of this CPU finds nearly as fast may be among them.
    assert {(key, "cold") for key in wanted} <= {*our_store.tuned(DEVICE)}
    problems = [ConvProblem.parse(key) for key in wanted]
    stated = {(each.k, each.residual, each.activation) for each in problems}
    assert stated == {(16, False, ("relu",)), (16, True, ("relu",)), (20, False, None)}

    again = warmed(path)
    assert (again["tuned"], len(again["resumed"])) == ([], len(tuned))
    assert "ms for a whole run" in again["said"]

    model = cpuconv.compile(path, threads=1)
    rows = {row.name: row for row in model.explain().operators if row.op == "Conv"}
    assert len(rows) == 3 and {row.decided_by for row in rows.values()} == {"store"}
    stored = {line["shape"]: line["algorithm"] for line in again["problems"]}
    assert {row.algorithm for row in rows.values()} <= {*stored.values()}
    if len(tuned) == len(rows):
        assert sorted(stored.values()) == sorted(row.algorithm for row in rows.values())
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    close(model(x), interpreted(network(), {"x": x}, wide=True)[0].astype(np.float32), 1e-4)
    untuned = cpuconv.compile(path, threads=1, strategy="heuristic")
    assert {row.decided_by for row in untuned.explain().operators} <= {"model", ""}


def test_batches_and_sizes(tmp_path, warmed, our_store, monkeypatch):
    """Every batch is tuned as a network of its own; other open sizes are stated by name."""
    path = save(tmp_path, "N", 8)
    told = warmed(path, "--batches", "1,3", "--no-race")
    wanted = [asked(path, monkeypatch, input_shapes={"x": (n, 3, 8, 8)}) for n in (1, 3)]
    first = {key for key, _ in our_store.tuned(DEVICE)}
    assert wanted[0] | wanted[1] <= first and len(told["tuned"]) == len(first)
    assert all(f"net, batch {n}, 1 thread: " in told["said"] for n in (1, 3))

    path = save(tmp_path, "N", "H")
    told = warmed(path, "--input", "x=1x3x8x8")
    assert told["tuned"] == [] and len(wanted[0]) <= len(told["resumed"]) < len(first)
    told = warmed(path, "--input", "x=1x3x5x8")
    wanted = asked(path, monkeypatch, input_shapes={"x": (1, 3, 5, 8)})
    found = {key for key, _ in our_store.tuned(DEVICE)}
    assert wanted <= found and len(told["tuned"]) == len(found - first)


def test_layouts_that_are_stated_are_of_plain_convolutions(tmp_path, warmed, our_store):
    told = warmed(save(tmp_path), "--layouts", "auto,auto")
    problems = [ConvProblem.parse(key) for key, _ in our_store.tuned(DEVICE)]
    assert len(problems) == 3 and not any(each.residual or each.activation for each in problems)
    assert "whole run" not in told["said"]


def test_profile_times_what_is_not_stored(tmp_path, our_store):
    text = "g (float[1,3,8,8] x) => (float[1,4,6,6] y) { a = Conv(x, w) y = Relu(a) }"
    source = parse(text, w=np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32))

    def decided(**options: object) -> set[str]:
        model = cpuconv.compile(source, threads=1, **options)
        x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
        close(model(x), interpreted(source, {"x": x})[0], 1e-4)
        return {row.decided_by for row in model.explain().operators} - {""}

    assert decided() == {"model"} and our_store.tuned(DEVICE) == []
    assert decided(strategy="profile") == {"store"}
    assert len(our_store.tuned(DEVICE)) == 1  # the problem that runs, in no other layouts
    assert decided() == {"store"}


NARROW = """g (float[1,64,12,8] x) => (float[1,64,12,8] y)
    <float s = {0.05}, uint8 z = {128}, int8[64,64,1,1] w, float t = {0.0137}, int8 zw = {0}> {
    q = QuantizeLinear(x, s, z)
    a = DequantizeLinear(q, s, z)
    b = DequantizeLinear(w, t, zw)
    c = Conv(a, b)
    d = QuantizeLinear(c, s, z)
    y = DequantizeLinear(d, s, z)
}"""
HALVES = """g (float[1,64,12,8] x) => (float[1,64,12,8] y) <float[64,64,1,1] w> {
    a = Conv(x, w)
    b = Relu(a)
    y = Conv(b, w)
}"""


@pytest.mark.parametrize(("text", "precision", "types"), [(NARROW, "float32", "u8:s8:u8"), (HALVES, "bfloat16", None)])
def test_networks_of_narrow_elements(text, precision, types, tmp_path, warmed, our_store, monkeypatch):
    """What runs is tuned in its own types, and then found; in float32 nothing is, where other types are asked for."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(-9, 9, (64, 64, 1, 1))
    source = parse(text, w=numbers.astype(np.int8) if types else (numbers / 64).astype(np.float32))
    path = str(tmp_path / "net.onnx")
    onnx.save(source, path)
    wanted = asked(path, monkeypatch, precision=precision)
    told = warmed(path, "--precision", precision, "--shape-limit", "10")
    assert {(key, "cold") for key in wanted} <= {*our_store.tuned(DEVICE)} and len(told["tuned"]) >= len(wanted) > 0
    assert types is None or {str(ConvProblem.parse(key).types) for key in wanted} == {types}
    model = cpuconv.compile(path, threads=1, precision=precision)
    rows = [row for row in model.explain().operators if "Conv" in row.op]
    assert {row.decided_by for row in rows} == {"store"}
    x = rng.standard_normal((1, 64, 12, 8)).astype(np.float32)
    close(model(x), interpreted(source, {"x": x}, wide=True)[0].astype(np.float32), 0.02)


def test_an_unknown_precision_is_refused(tmp_path, warmed, capsys):
    assert main(["warmup", save(tmp_path), *QUICK, "--precision", "bf61"]) == USAGE
    assert "'precision' must be one of float32, bfloat16, not 'bf61'" in capsys.readouterr().err
