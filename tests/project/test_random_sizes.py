"""The script that judges networks at random sizes: a slice of it, and what it says of sizes that fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

import random_sizes as script  # noqa: E402

from bench.networks import Network, Shapes, networks  # noqa: E402
from support import random_sizes  # noqa: E402
from support.graphs import parse  # noqa: E402
from support.random_sizes import ODDEST, SMALLEST, Judge, Wrong, from_folder  # noqa: E402
from support.sized_networks import BY_NAME, NETWORKS, SizedNetwork  # noqa: E402

SIGN = SizedNetwork("sign", parse("g (float[N,T] x) => (float[N,T] y) { y = Sign(x) }"), {"x": ((1, 4), (2, 9))})
SUM = SizedNetwork(
    "sum", parse("g (float[N,T] x, float[N,U] v) => (float[N,T] y) { y = Add(x, v) }"), {"x": (1, 3), "v": (1, (2, 5))}
)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_slice(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The smallest and the oddest size, and one more, between guard pages."""
    assert script.main(["--networks", name, "--count", "3"]) == 0, capsys.readouterr().out


def test_a_number_is_sizes_and_elements() -> None:
    for network in NETWORKS:
        judge, again = Judge(network), Judge(network)
        for number in (SMALLEST, ODDEST, 9):
            feed, same = judge.feed(number), again.feed(number)
            assert judge.shapes(number) == {port: array.shape for port, array in feed.items()}
            assert all(np.array_equal(array, same[port]) for port, array in feed.items())
        for port, axes in network.inputs.items():
            steps = (1, *[network.step] * (len(axes) - 1))
            sizes = zip(axes, judge.shapes(SMALLEST)[port], judge.shapes(ODDEST)[port], steps, strict=True)
            assert all(
                low == axis == high if isinstance(axis, int) else low == axis[0] and high // step % 2
                for axis, low, high, step in sizes
            )
        assert len({str(judge.shapes(number)) for number in range(2, 12)}) > 3


def test_a_wrong_result_is_told_by_a_command_that_tries_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "NETWORKS", (SIGN,))
    assert script.main(["--count", "3", "--threads", "1"]) == 0
    monkeypatch.setattr(Judge, "_guarded", lambda self, feed, expected, edge: [array * 1.01 for array in expected])
    assert script.main(["--count", "3"]) == 1
    told = capsys.readouterr().out
    assert "python tests/random_sizes.py --networks 'sign' --seed 1 --threads 1 --first 2 --count 1\n" in told
    assert "ONNX Runtime: output 'y' differs by 1.00e-02" in told and "3 wrong" in told


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda feed, out: feed["x"].fill(0), "input 'x' was written to"),
        (lambda feed, out: out["y"].fill(0), "output 'y' has other bits"),
        (lambda feed, out: np.copyto(random_sizes_page(out["y"]), 0), "written to"),
    ],
)
def test_what_a_run_must_not_do_is_seen(spoil, text: str) -> None:
    judge = Judge(SIGN)
    run = judge.model.run

    def spoilt(feed, out=None):
        results = run(feed, out)
        if out is not None:
            spoil(feed, out)
        return results

    assert judge.judge(4) == "right"
    judge.model.__dict__["run"] = spoilt
    with pytest.raises(AssertionError, match=text):
        judge.judge(4)


def random_sizes_page(array: np.ndarray) -> np.ndarray:
    """What lies before or behind an array on its own pages."""
    from support.guarded import pages

    whole, start = pages(array).view(np.uint8), array.ctypes.data - pages(array).ctypes.data
    return whole[:start] if start else whole[array.nbytes :]


def test_sizes_that_onnx_runtime_refuses_are_refused() -> None:
    told = {Judge(SUM).judge(number) for number in range(8)}
    assert told == {"right", "refused"}


def test_sizes_that_only_onnx_runtime_refuses_are_wrong() -> None:
    judge = Judge(SIGN)
    judge.session = type("Refusing", (), {"run": lambda *_: [][0]})()
    with pytest.raises(Wrong, match="ONNX Runtime refuses"):
        judge.judge(2)


def test_orders_that_change_bits_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(script, "NETWORKS", (SIGN,))
    assert script.main(["--order", "--count", "4"]) == 0
    whole, models = Judge.results, []

    def results(self, model, numbers):
        models.append(model)
        found = whole(self, model, numbers)
        return {**found, 2: {"y": b"other"}} if len(models) == 2 else found

    monkeypatch.setattr(Judge, "results", results)
    assert script.main(["--order", "--count", "4"]) == 1
    assert "sign: number 2, " in capsys.readouterr().out and models[0] is not models[1]


def test_networks_of_a_folder_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes that differ between the network's shapes are drawn, and the batch; the others stay."""
    model = parse("g (float[1,3,4,8] x) => (float[1,3,4,8] y) { y = Relu(x) }")
    onnx.save(model, tmp_path / "whole.onnx")
    shapes: list[Shapes] = [{"x": (1, 3, 4, 8)}, {"x": (1, 3, 4, 2)}]
    known = Network("whole", shapes[0], lambda _: model, {}, shapes[1])
    monkeypatch.setattr(random_sizes, "networks", lambda: {**networks(), "whole": known})
    (network,) = from_folder(tmp_path)
    assert network.inputs == {"x": ((1, 2), 3, 4, (2, 8))} and not [*from_folder(tmp_path, ["resnet50"])]
    assert script.main(["--folder", str(tmp_path), "--count", "3"]) == 0
    assert "whole: 3 right" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no networks resnet50"):
        script.main(["--folder", str(tmp_path), "--networks", "whole,resnet50", "--count", "1"])
