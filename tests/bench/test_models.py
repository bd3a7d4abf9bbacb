"""The benchmark of whole networks: the files it makes, its arithmetic and tables, without any of the engines."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from support.tuner.bench_fakes import FakeEngine, measurement

onnx = pytest.importorskip("onnx")

from bench import models, precisions, race  # noqa: E402
from bench.engine import Session  # noqa: E402
from bench.networks import (  # noqa: E402
    Network,
    __main__,
    light,
    networks,
    problem,  # noqa: E402
)
from bench.networks import model as nets  # noqa: E402
from bench.networks.problem import NetworkProblem, keep, problems  # noqa: E402
from bench.oracle import worst_error  # noqa: E402
from bench.peers import CPUCONV, OWN_F32, make  # noqa: E402
from bench.peers.base import Form  # noqa: E402
from bench.results import LineResult, Measurement  # noqa: E402
from bench.settings import Run, Settings  # noqa: E402
from bench.shapes import Line  # noqa: E402
from support.graphs import parse, run  # noqa: E402

TEXT = """g (float[1,3,6,6] x) => (float[1,24] y)
    <float[6,3,3,3] w, float[6] b, float[6] scale, float[6] shift, float[6] mean, float[6] var, int64[2] s = {1, 24}>
    {
        a = Conv<strides = [2, 2]>(x, w, b)
        c = BatchNormalization(a, scale, shift, mean, var)
        y = Reshape(c, s)
    }"""
SHAPES = {"x": (1, 3, 6, 6)}


def tiny(inputs: object) -> onnx.ModelProto:
    """A network for any number of images."""
    model, rng = parse(TEXT), np.random.default_rng(3)
    sizes = {"w": (6, 3, 3, 3)} | dict.fromkeys(("b", "scale", "shift", "mean", "var"), (6,))
    nets.replace(model, {name: 7 * nets.drawn(rng, shape) for name, shape in sizes.items()})
    light.free_batch(model)
    nets.settle(model, inputs)
    return model


NETWORK = Network("tiny", SHAPES, tiny, {"numpy": "numpy"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of the tiny network, the only one that there is."""
    for room in (problem, __main__):
        monkeypatch.setattr(room, "networks", lambda *_: {"tiny": NETWORK})
    assert __main__.main([str(tmp_path)]) == 0
    return tmp_path


# --- networks --------------------------------------------------------------------------------------------------------


def test_every_network_of_the_table_says_what_it_needs():
    found = networks()
    assert len(found) == 23 and all(name == each.name for name, each in found.items())
    for network in found.values():
        assert network.inputs and {shape[0] for shape in (network.small or network.inputs).values()} == {1}
        assert {"onnx"} <= set(network.needs)
    assert Network("a", SHAPES, tiny, {"no_such": "such==1", "nor_that": "such==1"}).missing() == "pip install such==1"


def test_settled_weights_make_tensors_of_ordinary_size():
    model = tiny(SHAPES)
    known, fed = nets.constants(model), nets.feed(SHAPES)
    given = np.einsum("nchwij,kcij->nkhw", _windows(fed["x"]), known["w"])
    assert given.std() == pytest.approx(1, rel=1e-5)
    with_bias = given + known["b"].reshape(-1, 1, 1)
    np.testing.assert_allclose(known["mean"], with_bias.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(known["var"], with_bias.var((0, 2, 3)), rtol=1e-4)


def _windows(x: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]


def test_a_network_takes_other_numbers_of_images():
    model = tiny(SHAPES)
    fed = nets.feed(SHAPES)
    (one,) = run(model, fed)
    nets.resize(model, nets.batched(SHAPES, "N"))
    (many,) = run(model, {"x": np.repeat(fed["x"], 3, 0)})
    np.testing.assert_allclose(many, np.repeat(one, 3, 0), atol=1e-6)


def test_a_network_that_reads_is_fed_letters():
    shapes = {"x": (2, 3, 48, 64)}
    reader = Network("reader", shapes, tiny, {}, reads=True)
    pages = reader.feed(shapes)["x"]
    assert pages.dtype == np.float32 and pages.shape == shapes["x"]
    dark = pages.mean(1) < 0
    assert 0.1 < dark.mean() < 0.5 and (dark[0] != dark[1]).any()
    np.testing.assert_array_equal(dark[:, 3:6, 3:6], dark[:, 3:4, 3:4].repeat(3, 1).repeat(3, 2))  # a dot


def test_constants_are_not_among_the_inputs_of_a_light_network():
    model = onnx.load(light.FOLDER / "light_squeezenet.onnx")
    light.fill(model, np.random.default_rng(0))
    light.modernise(model, {"data_0"})
    assert [info.name for info in model.graph.input] == ["data_0"]
    assert {tensor.name for tensor in model.graph.initializer} < {n for node in model.graph.node for n in node.input}
    onnx.checker.check_model(model)


def test_the_command_makes_files_once_and_tells_what_is_missing(folder: Path, capsys, monkeypatch):
    made = (folder / "tiny.onnx").stat().st_mtime_ns
    assert __main__.main([str(folder)]) == 0 and (folder / "tiny.onnx").stat().st_mtime_ns == made
    lacking = Network("lacking", SHAPES, tiny, {"no_such": "such==1"})
    monkeypatch.setattr(__main__, "networks", lambda *_: {"tiny": NETWORK, "lacking": lacking})
    assert __main__.main([str(folder)]) == 0 and __main__.main([str(folder), "--only", "lacking"]) == 1
    assert "it needs: pip install such==1" in " ".join(capsys.readouterr().err.split())
    assert __main__.main([]) == 0 and "x 1x3x6x6" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.npz", "tiny.onnx"]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_problem_has_the_right_outputs_of_equal_images(folder: Path, batch: int):
    with problems(folder, {"tiny": NETWORK}, batch) as found:
        problem = found["tiny"]
        fed = problem.feed()
        assert fed["x"].shape == (batch, 3, 6, 6)
        assert worst_error(run(str(problem.path), fed), problem.outputs()) < 1e-6
    assert problem.path.exists() == (batch == 1)


# --- engines ---------------------------------------------------------------------------------------------------------


class FakePeer:
    """Gives what it is told to, whatever it is fed."""

    name, package = "Fake", "numpy"

    def __init__(self, outputs: list[np.ndarray]) -> None:
        self.outputs = outputs

    def converted(self, path: Path, folder: Path) -> Path:
        made = folder / "other"
        made.write_bytes(path.read_bytes())
        return made

    def network(self, path: Path, feed: dict[str, np.ndarray], threads: int) -> list[Form]:
        assert path.name == "other" and path.is_file() and set(feed) == {"x"}
        return [Form("plain", lambda: None, lambda: self.outputs)]


def test_an_engine_is_judged_by_all_outputs(folder: Path):
    problem = NetworkProblem(folder / "tiny.onnx", keep(NETWORK, folder / "tiny.onnx"))
    right = problem.outputs()
    for outputs, error in ((right, 0.0), ([right[0] + np.abs(right[0]).max()], 1.0), (right * 2, np.inf)):
        (prepared,) = Session(FakePeer(outputs), 1).prepare(problem)
        assert prepared.error == pytest.approx(error)


# --- figures ---------------------------------------------------------------------------------------------------------


def results() -> list[LineResult]:
    found = {
        "fast": measurement(cpuconv=[[1.0]], openvino=[[2.0]], mnn=[[4.0]]),
        "slow": measurement(cpuconv=[[2.0]], openvino=[[4.0]], mnn=[[1.0]]),
        "wrong": Measurement(
            {**measurement(cpuconv=[[1.0]]).forms, "mnn": []}, ["Mnn's nchw is wrong by 1.0e+00", "Openvino failed: no"]
        ),
    }
    return [LineResult(Line(None, label, ""), [each]) for label, each in found.items()]


def described(*keys: str) -> Run:
    return Run({key: key.title() for key in keys}, dict.fromkeys(keys, "1"), Settings(threads=2, batch=8))


def test_the_best_peer_is_over_ours_and_wrong_ones_are_none():
    data = json.loads(json.dumps(models.to_dict(results(), described(CPUCONV, "openvino", "mnn"))))
    fast, slow, wrong = data["lines"]
    assert (fast["best_peer"], fast["ratio"]["median"]) == ("openvino", 2.0)
    assert (slow["best_peer"], slow["ratio"]["median"]) == ("mnn", 0.5)
    assert wrong["ratio"] is None and wrong["without"] == {"openvino": "failed", "mnn": "wrong"}
    stopped = models.to_dict([LineResult(Line(None, "", ""), [measurement(mnn=[])])], described(CPUCONV, "mnn"))
    assert stopped["lines"][0]["without"] == {CPUCONV: "not timed", "mnn": "not timed"}
    assert data["geomean"]["median"] == pytest.approx(1.0) and data["worst"]["median"] == 0.5
    lines = models.table(data).splitlines()
    assert "threads: 2, images: 8" in lines[0]
    assert (
        " ".join(lines[4].split()) == "fast 1000.00 (1000.00) 2000.00 (2000.00) 4000.00 (4000.00) Openvino 2.00 (2.00)"
    )
    assert " ".join(lines[6].split()) == "wrong 1000.00 (1000.00) failed wrong – –"
    assert [line.split()[-2:] for line in lines[7:]] == [["1.00", "(1.00)"], ["0.50", "(0.50)"]]
    assert models.notes(data) == ["wrong: Mnn's nchw is wrong by 1.0e+00.", "wrong: Openvino failed: no."]


def test_without_ours_there_are_no_ratios():
    alone = [LineResult(Line(None, "a", ""), [measurement(mnn=[[1.0]])])]
    data = models.to_dict(alone, described("mnn"))
    assert data["geomean"] is data["worst"] is None and len(models.table(data).splitlines()) == 5


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [FakeEngine(CPUCONV, {"plain": 1.0}), FakeEngine("mnn", {"plain": 3.0})]
    monkeypatch.setattr(race, "started", lambda *_: contextlib.nullcontext(engines))


def test_a_table_for_each_number_of_threads_and_images(folder: Path, fakes: None, capsys):
    file = folder / "out.json"
    assert models.main([str(folder), "--threads", "1,2", "--batch", "1,2", "--rounds", "2", "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert [(each["batch"], each["threads"]) for each in data] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(each["lines"][0]["ratio"]["median"] == 3.0 for each in data)
    assert capsys.readouterr().out.count("geometric mean") == 4


def test_a_folder_without_networks_is_refused(tmp_path: Path):
    with pytest.raises(SystemExit, match="python -m bench.networks"):
        models.main([str(tmp_path)])


# --- precisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [*precisions.TABLE])
def test_engines_are_asked_for_a_precision(precision: str):
    args = models.parser().parse_args(["DIR", "--precision", precision, "--peers", "openvino,onnxruntime"])
    run = models.settings(args, 1, 2)
    told = {key: run.options.get(key, {}) for key in (CPUCONV, *run.peers)}
    hints = {"float32": "f32", "bf16": "bf16", "int8": "f32", "default": None}
    assert vars(make("openvino", **told["openvino"])) == {"precision": hints[precision]}
    ours = make(CPUCONV, **told[CPUCONV]).precision
    assert ours == ("bfloat16" if precision == "bf16" else "float32")
    assert ("onnxruntime" in run.peers) == (precision != "bf16")
    assert (OWN_F32 in run.peers) == (precision in ("bf16", "int8"))
    assert OWN_F32 not in told or make(OWN_F32, **told[OWN_F32]).precision == "float32"
    assert (run.own_tolerance < run.tolerance) == (precision in ("float32", "default"))


def test_networks_of_integers_are_made_once_and_judged_by_their_own_operators(folder: Path):
    pytest.importorskip("onnxruntime")
    before = 0
    for batch in (1, 3):
        with problems(folder, {"tiny": NETWORK}, batch, integers=True) as found:
            narrow, full = found["tiny"], found["tiny"].full
            assert full is not None and full.path.stem == "tiny" and narrow.feed()["x"].shape == (batch, 3, 6, 6)
            assert {"QuantizeLinear", "DequantizeLinear"} < {node.op_type for node in onnx.load(narrow.path).graph.node}
            assert worst_error(run(str(narrow.path), narrow.feed()), narrow.outputs()) < 0.02
            assert 0 < worst_error(narrow.outputs(), full.outputs()) < 0.1
            peer = FakePeer(full.outputs())
            peer.full = True
            (prepared,) = Session(peer, 1).prepare(narrow)
            assert prepared.error == 0  # it is given the network in float32
        made = (folder / "tiny.int8.onnx").stat().st_mtime_ns
        assert batch == 1 or made == before
        before = made


def test_ours_in_float32_is_beside_ours_of_other_precisions():
    found = LineResult(Line(None, "a", ""), [measurement(**{CPUCONV: [[1.0]], OWN_F32: [[3.0]], "openvino": [[2.0]]})])
    data = models.to_dict([found], described(CPUCONV, OWN_F32, "openvino")) | {"precision": "bf16"}
    assert data["lines"][0]["best_peer"] == "openvino" and data["own_geomean"]["median"] == pytest.approx(3)
    lines = models.table(data).splitlines()
    assert "precision: bf16" in lines[0] and lines[2].rstrip().endswith("own fp32 ÷ cpuconv")
    assert lines[4].split()[-4:] == ["2.00", "(2.00)", "3.00", "(3.00)"]
