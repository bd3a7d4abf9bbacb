"""`cpuconv benchmark`, `profile --trace` and `explain --onnx`: figures, other engines, files, and what is refused."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from autotune.cli.options import INTERRUPTED, OK, USAGE  # noqa: E402
from cpuconv.api import throughput  # noqa: E402
from cpuconv.cli import benchmarking  # noqa: E402
from cpuconv.cli.benchmarking import benchmark  # noqa: E402
from cpuconv.cli.main import main  # noqa: E402
from cpuconv.cli.other_engines import ENGINES, Engine  # noqa: E402
from support.graphs import parse  # noqa: E402

FEED = {"x": np.ones((4, 2), np.float32)}
SHORT = ("-d", "0.1", "--warmup", "0.01", "--threads", "1", "--strategy", "heuristic")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "net.onnx"
    text = """g (float[N,8,12,12] x) => (float[N,16,12,12] y) <float[16,8,3,3] w> {
        a = Conv<pads = [1, 1, 1, 1]>(x, w)
        y = Relu(a)
    }"""
    made = parse(text, w=np.random.default_rng(0).normal(size=(16, 8, 3, 3)).astype(np.float32))
    path.write_bytes(made.SerializeToString())
    return str(path)


def engine(name: str, seconds: float, order: list[str], output: float = 1.0) -> Engine:
    """An engine that takes this long, and writes its name into `order`."""

    def run() -> dict[str, np.ndarray]:
        order.append(name)
        time.sleep(seconds)
        return {"y": np.full(3, output, np.float32)}

    return Engine(name, lambda: run)


def test_figures_are_those_of_the_runs() -> None:
    engines = [engine("a", 0.002, []), engine("b", 0.008, [], output=1.5)]
    report = benchmark(engines, FEED, threads=1, callers=1, duration=0.1, warmup=0.01)
    a, b = report.engines
    for each, seconds in ((a, 0.002), (b, 0.008)):
        assert seconds <= each.min <= each.p50 <= each.p90 <= each.p99 <= each.max
        assert each.runs * each.min <= 0.1 + each.max
        assert each.per_second == pytest.approx(4 * each.runs / 0.1, rel=0.5)  # the first axis is 4
    assert a.runs > b.runs and report.batch == 4 and not report.interrupted
    assert a.difference is None and b.difference == pytest.approx(0.5 / 1.5)
    (row,) = [line for line in report.text().splitlines() if line.startswith("b ")]
    assert f"{b.p50 / a.p50:.2f}" in row


def test_engines_run_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarking, "TURN", 0.02)
    order: list[str] = []
    benchmark([engine("a", 0.004, order), engine("b", 0.004, order)], FEED, threads=1, callers=1, duration=0.06,
              warmup=0.005)  # fmt: skip
    changes = [name for at, name in enumerate(order) if not at or order[at - 1] != name]
    assert changes.count("a") >= 4 and changes.count("b") >= 4  # the warm-up, and three turns each


def test_callers_run_at_the_same_time() -> None:
    alone, four = (
        benchmark([engine("a", 0.01, [])], FEED, threads=1, callers=callers, duration=0.2, warmup=0.01).engines[0]
        for callers in (1, 4)
    )
    assert four.per_second > 2.5 * alone.per_second


@pytest.mark.parametrize("callers", [1, 3])
def test_a_failing_run_is_raised(callers: int) -> None:
    runs = iter(range(100))

    def run() -> dict[str, np.ndarray]:
        if next(runs) > 4:
            raise RuntimeError("broken")
        return {}

    with pytest.raises(RuntimeError, match="broken"):
        benchmark([Engine("a", lambda: run)], FEED, threads=1, callers=callers, duration=0.1, warmup=0.01)


def test_ctrl_c_keeps_the_figures(monkeypatch: pytest.MonkeyPatch, model: str, capsys) -> None:
    monkeypatch.setattr(benchmarking, "TURN", 0.02)
    timed = benchmarking._Series.run_for
    turns = iter(range(100))

    def interrupted(self: benchmarking._Series, *args: float, **more: bool) -> None:
        if next(turns) == 3:  # after the warm-up and two turns
            raise KeyboardInterrupt
        timed(self, *args, **more)

    monkeypatch.setattr(benchmarking._Series, "run_for", interrupted)
    assert main(["benchmark", model, *SHORT, "--json"]) == INTERRUPTED
    report = json.loads(capsys.readouterr().out)
    assert report["interrupted"] and report["engines"][0]["runs"] > 0


def test_against_onnx_runtime(model: str, tmp_path: Path, capsys) -> None:
    pytest.importorskip("onnxruntime")
    table = tmp_path / "figures.csv"
    command = ["benchmark", model, *SHORT, "--batch", "3", "--callers", "2", "--against", "onnxruntime"]
    assert main([*command, "--json", "--csv", str(table)]) == OK
    report = json.loads(capsys.readouterr().out)
    assert (report["batch"], report["callers"], report["threads"]) == (3, 2, 1)
    ours, theirs = report["engines"]
    assert ours["engine"].startswith("cpuconv") and theirs["engine"].startswith("ONNX Runtime")
    assert theirs["difference"] < 1e-5
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["engine"] for row in rows] == [ours["engine"], theirs["engine"]]
    assert [float(row["p50"]) for row in rows] == [ours["p50"], theirs["p50"]]
    assert main(command) == OK
    assert "2 callers, batch of 3" in capsys.readouterr().out


def test_what_is_refused(model: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", model, "--against", "tensorrt"])
    assert ended.value.code == USAGE and "onnxruntime" in capsys.readouterr().err

    def missing(path: str, feed: object, threads: int, streams: int) -> Engine:
        raise ImportError("No module named 'onnxruntime'")

    monkeypatch.setitem(ENGINES, "onnxruntime", missing)
    assert main(["benchmark", model, *SHORT, "--against", "onnxruntime"]) == USAGE
    assert "pip install onnxruntime" in capsys.readouterr().err
    saved = str(tmp_path / "net.cpuconv")
    assert main(["compile", model, "-o", saved]) == OK
    assert main(["benchmark", saved, *SHORT, "--against", "onnxruntime"]) == USAGE
    assert "MODEL must be an ONNX file" in capsys.readouterr().err


def test_a_fixed_batch(tmp_path: Path, capsys) -> None:
    """1 is opened, another size is refused, and so is an operator that mixes items."""
    path = tmp_path / "net.onnx"
    for batch, body, words in (
        ("1", "y = Relu(x)", ""),
        ("3", "y = Relu(x)", "--batch must be 3, as x is float32[3,3], not 2"),
        ("1", "y = ReduceMean<axes = [0]>(x)", "ReduceMean node"),
    ):
        path.write_bytes(parse(f"g (float[{batch},3] x) => (float[A,B] y) {{ {body} }}").SerializeToString())
        code = main(["benchmark", str(path), *SHORT, "--batch", "2", "--json"])
        report = capsys.readouterr()
        assert (code == USAGE and words in report.err) if words else json.loads(report.out)["batch"] == 2


def test_streams(model: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["benchmark", model, *SHORT[:4], "--threads", "2", "--streams", "2"]) == OK
    assert "2 streams of 1 thread, 2 callers" in capsys.readouterr().out
    monkeypatch.setattr(throughput, "_runs_per_second", lambda queue, feed, seconds: 1.0)
    options = ("--streams", "auto", "--batch", "1", "--precision", "bfloat16", "--json")
    assert main(["benchmark", model, *SHORT, *options]) == OK
    report = json.loads(capsys.readouterr().out)
    assert report["streams"] == report["callers"] == 1 and report["engines"][0]["p90"] > 0
    assert "(bfloat16)" in report["engines"][0]["engine"]


def test_pictures(tmp_path: Path, capsys) -> None:
    pictures = pytest.importorskip("PIL.Image")
    pytest.importorskip("onnxruntime")
    made, file = tmp_path / "net.onnx", tmp_path / "photo.png"
    text = "g (float[N,3,8,8] x) => (float[N,3,1,1] y) { y = GlobalAveragePool(x) }"
    made.write_bytes(parse(text).SerializeToString())
    pictures.fromarray(np.zeros((12, 9, 3), np.uint8)).save(file)
    images = ("--batch", "2", "--image", str(file), "--image", str(file))
    assert main(["benchmark", str(made), *SHORT, *images, "--against", "onnxruntime", "--json"]) == OK
    report = json.loads(capsys.readouterr().out)
    assert report["batch"] == 2 and report["engines"][1]["difference"] < 1e-5


def test_a_trace_has_a_track_per_worker(model: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert main(["profile", model, "--threads", "1", "--runs", "2", "--trace", str(file)]) == OK
    events = json.loads(file.read_text())["traceEvents"]
    names = {(event["name"], event["args"]["name"]) for event in events if event["ph"] == "M"}
    assert names == {("process_name", "cpuconv: net"), ("thread_name", "worker 0")}
    spans = [event for event in events if event["ph"] == "X"]
    assert "Conv" in {event["cat"] for event in spans}
    ends = [0.0]
    for event in spans:
        assert ends[-1] <= event["ts"] and event["dur"] > 0  # microseconds, one operator after another
        ends.append(event["ts"] + event["dur"])


def test_the_rewritten_network_for_viewers(model: str, tmp_path: Path) -> None:
    file = tmp_path / "rewritten.onnx"
    assert main(["explain", model, "--threads", "1", "--onnx", str(file)]) == OK
    graph = onnx.load(file).graph
    assert [value.name for value in graph.input] == ["x"] and [value.name for value in graph.output] == ["y"]
    known = {"x", *(name for node in graph.node for name in node.output)}
    (layer,) = (node for node in graph.node if node.op_type == "Conv")  # the Relu is its epilogue
    assert {attribute.name for attribute in layer.attribute} >= {"algorithm", "layouts", "shape", "types"}
    assert "y" in known and layer.input[0] in known and layer.input[1] not in known
    assert all(node.input[0] in known for node in graph.node)
