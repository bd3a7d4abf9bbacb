"""The benchmark of reorders: its views for NumPy's conversion, and that it measures every pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cpuconv
import layouts
from bench import reorder
from cpuconv.elements import TABLE


@pytest.mark.parametrize("pair", reorder.PAIRS, ids=" to ".join)
def test_views_by_channel_convert_as_numpy_does(pair):
    nchw = np.arange(2 * 64 * 3 * 4, dtype=np.float32).reshape(2, 64, 3, 4)
    x, expected = (layouts.from_nchw(nchw, name) for name in pair)
    made = np.zeros_like(expected)
    np.copyto(reorder.by_channel(made, pair[1], pair), reorder.by_channel(x, pair[0], pair))
    assert np.array_equal(made, expected)


def test_every_pair_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture):
    threads = cpuconv.get_num_threads()
    try:
        short = ["--rounds", "1", "--seconds-per-sample", "0", "--calls", "1"]
        reorder.main(["--shapes", "1x16x5x6", "1x5x3x3", *short, "--json", str(tmp_path / "figures.json")])
    finally:
        cpuconv.set_num_threads(threads)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [tuple(line["pair"]) for line in figures["small"]] == list(reorder.PAIRS)
    assert [tuple(line["pair"]) for line in figures["large"]] == 2 * list(reorder.PAIRS)
    for line in figures["large"]:
        assert line["into_us"] > 0 and line["into_of_copyto"] > 0
        filled = line["shape"][1] % max(layouts.get(name).block for name in line["pair"]) == 0
        assert (line["into_of_numpy"] is not None) == filled
    assert "NCHW16c to NHWC" in capsys.readouterr().out


@pytest.mark.parametrize(("read", "written"), [("u8", "u8"), ("f32", "u8"), ("bf16", "f32")])
def test_elements_of_other_types_are_measured(read: str, written: str) -> None:
    kind = reorder.Kind(TABLE[read], TABLE[written])
    figures = reorder.measure(kind, ("NCHW", "NHWC"), (1, 16, 5, 6), 1)
    assert figures["bytes"] == 480 * max(kind.read.bytes, kind.written.bytes)
    assert figures["into_us"] > 0 and (figures["into_of_numpy"] is not None) == (read == written)
