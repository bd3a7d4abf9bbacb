"""What bench.start measures: real processes of ours on a small model, and engines that fail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench import start
from support.running.caches import CACHE

pytest.importorskip("onnx")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A small model's file."""
    import onnx

    from support.graphs import parse

    path = tmp_path / "model.onnx"
    onnx.save(parse("g (float[1,3,9,9] x) => (float[1,3,9,9] y) { y = Relu(x) }"), path)
    return str(path)


def test_starts_of_ours(model: str, tmp_path: Path, capsys) -> None:
    target = tmp_path / "figures.json"
    options = ["--engines", "cpuconv", "--rounds", "1", "--starts", "import,model,saved", "--json", str(target)]
    assert start.main([model, *options]) == 0
    told = json.loads(target.read_text())
    found = {label: engines["cpuconv"] for label, engines in told["starts"].items()}
    assert list(found) == [start.STARTS[name].label for name in ("import", "model", "saved")]
    for figures in found.values():
        assert 0 < figures["import"] <= figures["all"] < figures["process"]
        assert figures["modules"] > 0 and figures["kept"] > 0 and figures["most"] >= figures["kept"] > 1e6
        assert figures["compiled"] == 0  # saving put all kernels into the folder
    for label in list(found)[1:]:
        assert min(found[label][part] for part in ("import", "ready", "run")) > 0
    printed = capsys.readouterr().out
    assert all(label in printed for label in found)


def test_an_empty_cache_is_one_for_each_process(model: str, tmp_path: Path) -> None:
    arguments = start.parser().parse_args([model, "--empty-rounds", "2"])
    folders = []

    def run(args: object, engine: str, what: str, saved: Path, cache: Path, failed: dict) -> dict:
        folders.append((what, cache, cache.is_dir() and not any(cache.iterdir())))
        return {"all": float(len(folders))}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "_start", run)
        (tmp_path / "work").mkdir()
        data: dict = {"starts": {}, "failed": {}}
        start.measure(arguments, [start.STARTS["model-empty"]], ["cpuconv"], tmp_path / "work", data)
    (_, kept, _), *others = folders
    assert len({cache for _, cache, _ in others} | {kept}) == 3 and all(empty for *_, empty in others)
    assert data["starts"] == {start.MODEL + start.EMPTY: {"cpuconv": {"all": 2.5}}}


def test_a_checkout_has_byte_code_as_an_installed_package(model: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    arguments = start.parser().parse_args([model])
    assert start._start(arguments, "cpuconv", "import", tmp_path / "cpuconv", CACHE, {})
    assert list((tmp_path / "bytecode").rglob("cpuconv/__init__.*.pyc"))


def test_an_engine_that_fails_is_told_and_left_out(model: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(CACHE))
    broken = tmp_path / "broken"
    (broken / "openvino").mkdir(parents=True)
    (broken / "openvino" / "__init__.py").write_text("raise ImportError('it is broken')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(broken), *filter(None, [os.environ.get("PYTHONPATH")])]))
    options = ["--engines", "cpuconv,openvino", "--rounds", "1", "--starts", "import"]
    assert start.main([model, *options]) == 1
    printed = capsys.readouterr().out
    assert "OpenVINO failed: ImportError: it is broken" in printed and "cpuconv" in printed


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(SystemExit, match="--starts.*must be of import"):
        start.main(["model.onnx", "--starts", "later"])


def test_every_start_has_a_row_of_its_own() -> None:
    assert len({each.label for each in start.STARTS.values()}) == len(start.STARTS)


def test_figures_that_are_not_known(capsys) -> None:
    assert start._medians([{"a": 1, "b": None}, {"a": 3, "b": 2}]) == {"a": 2, "b": None}
    data = {"cpu": "C", "threads": 1, "rounds": 2, "empty_rounds": 1, "starts": {"s": {"cpuconv": {"most": None}}}}
    assert start.NOTHING in start.table(data) and "of 1 with an empty cache" in start.table(data)
