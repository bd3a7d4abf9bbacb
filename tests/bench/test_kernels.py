"""The inner-loop report: its loops compute what they say, and a small run prints it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from bench import kernels
from bench.loops import Loop, depthwise_loops, gemm_loops, peak_loop, winograd_loops
from cpuconv.isa import current
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.transforms.winograd import winograd_in, winograd_out
from cpuconv.kernels.windows.depthwise_tile import lane_strip
from cpuconv.solvers import winograd

ISA = current()


def made(loops, name: str) -> list[Loop]:
    return next(make() for each, make in loops(ISA) if each == name)


def words(loop: Loop, kernel) -> dict:
    """The data that a loop was bound to, by the micro-kernel's names, after one run of it."""
    loop.run(1)
    return dict(zip(kernel.words, loop.run.__defaults__[0], strict=True))


def test_every_tile_of_the_table_has_a_loop():
    names = [name for name, _ in gemm_loops(ISA)]
    assert len(names) == len(set(names)) == sum(ISA.pixels)
    assert f"{len(ISA.pixels)}x{ISA.pixels[-1]}" in names and "1x1" in names


def test_gemm_loops_multiply():
    last = len(ISA.pixels)
    for loop in made(gemm_loops, f"{last}x{ISA.pixels[-1]}"):
        data = words(loop, gemm_strip)
        x, w = (data[name].astype(np.float64) for name in "xw")  # [segment][pixel][i], [segment][i][v][lane]
        if loop.case == "L2":
            x = np.repeat(x[:1], len(w), axis=0)  # one segment's pixels, again and again
        expected = np.einsum("spi,sivl->vpl", x, w)
        assert np.abs(data["y"] - expected).max() <= 1e-5 * np.abs(expected).max()
        assert loop.flops == 2 * w.size * x.shape[1]


def test_winograd_loops_transform():
    at, _, bt = winograd.matrices(4, 3)
    forward, back = made(winograd_loops, "F(4,3)")
    data = words(forward, winograd_in)
    expected = np.einsum("ai,ijl,bj->abl", bt, data["x"].astype(np.float64), bt).reshape(36, ISA.lanes)
    assert np.abs(data["v"] - expected).max() <= 1e-5 * np.abs(expected).max()
    data = words(back, winograd_out)
    planes = data["m"].astype(np.float64).reshape(6, 6, ISA.lanes)
    expected = np.einsum("ai,ijl,bj->abl", at, planes, at) + data["bias"]
    found = data["y"].reshape(-1, ISA.lanes)[:16].reshape(expected.shape)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert (forward.vectors, back.vectors) == (72, 52)


def test_depthwise_loops_convolve():
    for name, make in depthwise_loops(ISA):
        if not name.startswith("3x3 s2"):
            continue
        (loop,) = make()
        data = words(loop, lane_strip)
        x, w = (data[name].astype(np.float64) for name in "xw")
        rows, cols = data["y"].shape[:2]
        expected = sum(w[r, s] * x[r : r + 2 * rows : 2, s : s + 2 * cols : 2] for r in range(3) for s in range(3))
        expected = expected + data["bias"]
        assert np.abs(data["y"] - expected).max() <= 1e-5 * np.abs(expected).max()
        assert loop.flops == 2 * 9 * data["y"].size


def test_a_small_run(tmp_path, capsys):
    tiles = [f"2x{ISA.pixels[1]}", "1x1"]
    options = ["--tiles", *tiles, "--rounds", "2", "--markdown", str(tmp_path / "kernels.md")]
    assert kernels.main(options) == 0
    printed, text = capsys.readouterr().out, (tmp_path / "kernels.md").read_text()
    for part in (*tiles, "L1: GFLOP/s", "L2: of peak", "FMA peak", "%"):
        assert part in printed and part in text
    assert "Winograd" not in text and "| tile " in text


def test_json_has_the_figures_of_every_loop(capsys):
    assert kernels.main(["--families", "winograd", "--tiles", "F(2,3)", "--rounds", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["peak_gflops"] > 0 and [loop["case"] for loop in data["loops"]] == ["in", "out"]
    for loop in data["loops"]:
        assert loop["cycles"] == pytest.approx(loop["ns"] * data["ghz"])
        assert loop["cycles_a_vector"] == pytest.approx(loop["cycles"] / loop["vectors"]) and "gflops" not in loop


def test_the_peak_is_measured():
    peak = peak_loop(ISA)
    peak.sample(1e-4)
    assert peak.flops > 0 and 0 < peak.seconds < math.inf


def test_a_loop_keeps_its_fastest_sample(clock):
    loop = Loop("1x1", "L1", lambda times: clock.advance(times * 1e-4 * clock.slowness), tiles=2)
    for clock.slowness, fastest in ((2.0, 1e-4), (1.0, 5e-5), (3.0, 5e-5)):
        loop.sample(1e-3)
        assert loop.seconds == pytest.approx(fastest)


def test_unknown_tiles_and_families(capsys):
    assert kernels.main(["--tiles", "99x99"]) == 1
    with pytest.raises(SystemExit, match="'--families' must be of gemm, winograd, depthwise, not gem"):
        kernels.main(["--families", "gem"])
