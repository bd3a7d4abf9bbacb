"""The networks of 2026: the table, and those that PyTorch alone can export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from bench.networks import SETS, __main__, networks, problem, recent  # noqa: E402
from bench.networks.problem import asked, problems  # noqa: E402
from bench.oracle import rows_error, worst_error  # noqa: E402

KINDS = 20  # kinds of networks that people run on CPUs


def test_the_table_has_more_networks_than_kinds_and_sets_share_no_name():
    found = networks("2026")
    assert len(found) > KINDS and all(name == each.name and each.set == "2026" for name, each in found.items())
    assert len({name for of in SETS for name in networks(of)}) == sum(len(networks(of)) for of in SETS)
    for network in found.values():
        assert "onnx" in network.needs and network.inputs
        assert network.fixed or network.reads  # only trained text networks have open batches


def test_missing_packages_come_with_pips_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    assert networks("2026")["yolo26n"].missing() == "pip install onnx torch ultralytics"
    assert networks("2026")["silero_vad"].missing() == "pip install onnx --no-deps silero-vad==6.2.3"


def test_every_module_written_here_has_the_shape_of_its_input():
    torch = pytest.importorskip("torch")
    small = {
        "U2Net": ((1, 3, 64, 64), (1, 1, 64, 64)),
        "VolumeUNet": ((1, 1, 8, 16, 8), (1, 3, 8, 16, 8)),
        "CompactSuperResolution": ((1, 3, 8, 9), (1, 3, 32, 36)),
        "DenseSuperResolution": ((1, 3, 8, 9), (1, 3, 32, 36)),
        "NAFNet": ((1, 3, 16, 24), (1, 3, 16, 24)),
        "ArcFace": ((1, 3, 112, 112), (1, 512)),
        "Vocoder": ((1, 80, 4), (1, 1, 1024)),
        "Separator": ((1, 2, 2048), (1, 8, 2048)),
    }
    for name, (given, wanted) in small.items():
        with torch.no_grad():
            assert recent.written(name).eval()(torch.zeros(given)).shape == wanted, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a network that needs PyTorch alone."""
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("networks")
    assert __main__.main([str(path), "--set", "2026", "--only", "nafnet"]) == 0
    return path


def test_an_exported_network_has_values_of_ordinary_size(folder: Path):
    ort = pytest.importorskip("onnxruntime")
    chosen = asked(folder, "", "2026")
    with problems(folder, chosen, 1) as found:
        feed, wanted = found["nafnet"].feed(), found["nafnet"].outputs()
        session = ort.InferenceSession(found["nafnet"].path, providers=["CPUExecutionProvider"])
        assert worst_error(session.run(None, feed), wanted) < 1e-4
        assert 0.1 < np.std(wanted[0]) < 30
    constants = [onnx.numpy_helper.to_array(each) for each in onnx.load(folder / "nafnet.onnx").graph.initializer]
    assert not any(each.size > 3 and each.dtype == np.float32 and np.ptp(each) == 0 for each in constants)


def test_a_file_for_one_image_is_refused_for_more(folder: Path):
    with pytest.raises(SystemExit, match="nafnet is for one image"), problems(folder, asked(folder, "", "2026"), 2):
        pass
    with pytest.raises(SystemExit, match="--set 2022"):
        asked(folder, "", "2022")


def test_batch_normalisations_of_pooled_pixels_keep_their_statistics():
    torch = pytest.importorskip("torch")
    from bench.networks.torch_export import set_statistics

    module = torch.nn.Sequential(torch.nn.BatchNorm2d(2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.BatchNorm2d(2)).eval()
    x = 3 + torch.randn(4, 2, 8, 8)
    with torch.no_grad():
        set_statistics(module, [x])
    np.testing.assert_allclose(module[0].running_mean, x.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_array_equal(module[2].running_var, [1, 1])


def test_rows_in_another_order_are_equal_and_a_wrong_half_is_not():
    rng = np.random.default_rng(0)
    scores, boxes = (rng.standard_normal((1, 50, size)) for size in (7, 4))
    order = rng.permutation(50)
    assert rows_error([scores[:, order], boxes[:, order]], [scores, boxes]) == 0
    assert rows_error([scores[:, order], boxes], [scores, boxes]) > 0.01
    few = scores.copy()
    few[:, :3] += 9
    assert rows_error(few, [scores]) == 0
    assert rows_error(scores[:, :49], [scores]) == rows_error(scores * np.nan, [scores]) == np.inf


def test_a_problem_says_that_its_rows_have_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(problem, "keep", lambda *_: None)
    network = networks("2026")["rtdetr_l"]
    with problems(tmp_path, {"rtdetr_l": network}, 1) as found:
        assert found["rtdetr_l"].unordered


def test_overlaps_and_shares_of_boxes():
    from bench.boxes import compared, overlap_of

    boxes = np.array([[0, 0, 2, 2], [4, 4, 6, 8]], np.float64)
    np.testing.assert_allclose(overlap_of(boxes, boxes + [1, 0, 1, 0]), [[1 / 3, 0], [0, 1 / 3]])
    output = np.array([[1, 5], [1, 6], [2, 2], [2, 4], [0.9, 0.1], [0, 0.5]])[None]  # centres, sizes, two classes
    assert compared([output], [output[..., ::-1]], 2)["found"] == 1
    assert compared([output], [output], 2) == {"found": 1, "overlap": 1, "score": 0}
    other = output.copy()
    other[0, 4:, 1] = 0.5, 0.1  # another class
    told = compared([output], [other], 2)
    assert (told["found"], told["overlap"]) == (0.5, 0.5)
    assert told["score"] == pytest.approx(np.sqrt(2 * 0.4**2 / (0.9**2 + 0.1**2 + 0.5**2)))
