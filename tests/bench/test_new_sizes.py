"""The benchmark of new sizes: what it draws, measures, compares and tells; and that of pages."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from autotune.paths import VARIABLE  # noqa: E402
from bench import new_sizes, pages  # noqa: E402
from bench.sizes import caches, measuring  # noqa: E402
from bench.sizes.inputs import SizedNetwork, open_network  # noqa: E402
from bench.sizes.measuring import Job  # noqa: E402
from cpuconv.runtime.code.packs import serving  # noqa: E402
from support.graphs import parse  # noqa: E402

TEXT = "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }"
DRAWN = SizedNetwork("drawn", "", "x", (1, 3, 48, 320), (3,), 40, 1200, 8, 50)


def test_shapes_are_different_and_in_range() -> None:
    shapes = DRAWN.shapes()
    assert len({*shapes}) == 50 and shapes == DRAWN.shapes() != dataclasses.replace(DRAWN, seed=2).shapes()
    assert {shape[:3] for shape in shapes} == {(1, 3, 48)} and DRAWN.title == "1x3x48x(40..1200 by 8)"
    widths = [shape[3] for shape in shapes]
    assert not any(width % 8 for width in widths) and 40 <= min(widths) < 200 and 1000 < max(widths) <= 1200
    few = dataclasses.replace(DRAWN, axes=(2, 3), low=10, high=31, count=99)
    assert {*few.shapes()} == {(1, 3, h, w) for h in (16, 24) for w in (16, 24)}  # there are no more
    batches = DRAWN.batches(120, 5)
    assert len(batches) == 120 and {shape[0] for shape in batches} == {1, 2, 3, 4, 5}


def test_a_file_of_fixed_sizes_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    onnx.save(parse(TEXT), path)
    made = tmp_path / "opened"
    made.mkdir()
    network = open_network(path, made, (1, 3, 8, 8), (2, 3), 4, 16, 4)
    sizes = onnx.load(network.path).graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in sizes] == ["size0", 3, "size2", "size3"]
    assert network.port == "x" and Path(network.path).parent == made
    assert open_network(Path(network.path), tmp_path, (1, 3, 8, 8), (3,), 4, 16, 4).path == network.path  # it is open
    with pytest.raises(SystemExit, match="one input of rank 3"):
        open_network(path, made, (3, 8, 8), (2,), 4, 16, 4)


def test_caches_of_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(serving.VARIABLE)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for cache, own, packs in (("own", True, True), ("empty", False, True), ("none", False, False)):
        with caches.environment(cache) as variables:
            assert (variables[VARIABLE] == str(tmp_path)) == own and Path(variables[VARIABLE]).is_dir()
            assert (serving.VARIABLE not in variables) == packs and caches.kernel_files(variables) == 0
            kernels = Path(variables[VARIABLE]) / "kernels" / "stamp"
            kernels.mkdir(parents=True)
            (kernels / "a.o").touch()
            assert caches.kernel_files(variables) == 1
        assert Path(variables[VARIABLE]).exists() == own


def test_errors_are_of_the_largest_element(tmp_path: Path) -> None:
    files = {key: str(tmp_path / f"{key}.npz") for key in ("ours", "close", "shape")}
    for key, arrays in (("ours", [4.0, 2.0]), ("close", [4.0, 2.4]), ("shape", [4.0])):
        np.savez(files[key], y=np.float32(arrays))
    assert measuring.largest_errors(files, "ours") == {"close": pytest.approx(0.1), "shape": np.inf}


def test_summary_tells_first_passes_from_later_ones() -> None:
    figures = {"wall": [[0.5, 0.1, 0.3], [0.2, 0.2, 0.1], [0.1, 0.3, 0.2]]}
    told = new_sizes.summary(figures, "wall")
    assert told == pytest.approx(
        {"new": 300, "worst": 500, "again": 1e3 * 0.4 / 3, "again_worst": 200, "cost": 200, "cost_worst": 400}
    )


def test_a_network_is_measured_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parse(TEXT), tmp_path / "relu.onnx")
    options = ["--engines", "cpuconv,onnxruntime", "--base", "1,3,8,8", "--from", "4", "--to", "12", "--step", "2"]
    options += ["--count", "6", "--cache", "own", "--json", str(tmp_path / "out.json"), str(tmp_path / "relu.onnx")]
    assert new_sizes.main(options) == 0
    told = capsys.readouterr().out
    assert "ONNX Runtime" in told and "best peer ÷ cpuconv" in told and "relu, 1 threads: results agree" in told
    (line,) = json.loads((tmp_path / "out.json").read_text())["lines"]
    assert line["errors"] == {"onnxruntime": 0.0}
    for each in line["engines"].values():
        assert len({tuple(shape) for shape in each["shapes"]}) == 6 and each["changed"] == []
        assert [len(times) for times in each["wall"] + each["processor"]] == [6] * 4 and min(each["wall"][0]) > 0
    assert new_sizes.main([*options, "--memory", "--runs", "3", "--batches", "2"]) == 0
    assert "3 runs of random sizes of relu: 1x3x(4..12 by 2)x(4..12 by 2), batches of 1 to 2" in capsys.readouterr().out
    (line,) = json.loads((tmp_path / "out.json").read_text())["lines"]
    memory = line["engines"]["onnxruntime"]["memory"]
    assert 1e7 < memory["imported"] <= memory["made"] <= memory["peak"] and memory["all"] <= memory["peak"]


def test_what_differs_and_what_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(job: Job, variables: object, timeout: float) -> dict:
        if job.engine == "openvino":
            return {"failed": "no such file"}
        np.savez(job.outputs, y=np.float32([1.0 if job.engine == "cpuconv" else 1.1]))
        times = {clock: [[0.2], [0.1]] for clock in new_sizes.CLOCKS}
        return {**times, "shapes": [[1]], "compiled": [7], "changed": [0]}

    monkeypatch.setattr(new_sizes, "ask", answer)
    monkeypatch.setattr(new_sizes.ENGINES["openvino"].__class__, "missing", False)
    monkeypatch.setattr(new_sizes, "ocr_networks", lambda: {"detector": dataclasses.replace(DRAWN, name="detector")})
    assert new_sizes.main(["detector"]) == 1
    told = capsys.readouterr().out
    assert "OpenVINO float32 failed: no such file" in told and "results DIFFER" in told
    assert "cpuconv gave other bits for 1 equal inputs" in told and "7 (0)" in told


def test_pages_differ_in_size_and_words() -> None:
    pytest.importorskip("PIL")
    drawn = [pages.page(seed) for seed in range(1, 16)]
    assert len({page.shape for page in drawn}) == 15 and all(page.dtype == np.uint8 for page in drawn)
    assert all(0 < (page < 128).mean() < 0.2 for page in drawn)  # dark letters on light paper
    np.testing.assert_array_equal(pages.page(3), drawn[2])


def test_ratios_of_pages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    changed = 0
    words = {"cpuconv": [["a", "b"]], "onnxruntime": [["a", "b"]]}

    def answer(engine: str, args: object) -> dict:
        times = {"made": 0.5, "first": [0.4, 0.2], "again": [0.1, 0.1]}
        slower = {name: np.multiply(2, each).tolist() for name, each in times.items()}
        return {"wall": times if engine == "cpuconv" else slower, "words": words[engine], "changed": changed}

    monkeypatch.setattr(pages, "ask", answer)
    assert pages.main([]) == 0
    told = capsys.readouterr().out
    assert told.count("2.00") == 5 and "2 lines; the words are the same" in told
    changed = 1
    assert pages.main([]) == 1
    assert "2 pages had OTHER WORDS AGAIN" in capsys.readouterr().out
    words["cpuconv"], changed = [["a"]], 0
    assert pages.main([]) == 1
    assert "NOT THE SAME" in capsys.readouterr().out


def test_an_interrupted_run_tells_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(job: Job, variables: object, timeout: float) -> dict:
        if job.threads == 2:
            raise KeyboardInterrupt
        return {clock: [[0.2], [0.1]] for clock in new_sizes.CLOCKS} | {"compiled": [7]}

    monkeypatch.setattr(new_sizes, "ask", answer)
    monkeypatch.setattr(new_sizes, "compared", lambda *_: {})
    monkeypatch.setattr(new_sizes, "ocr_networks", lambda: {"detector": dataclasses.replace(DRAWN, name="detector")})
    assert new_sizes.main(["detector", "--engines", "cpuconv", "--threads", "1,2"]) == new_sizes.INTERRUPTED
    assert "200.0 (200.0)" in capsys.readouterr().out
