"""Layouts that are kept on disk: as chosen anew, and not followed where anything that decides is another one."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from autotune.store.rows import Row  # noqa: E402
from autotune.store.store import Store  # noqa: E402
from autotune.wisdom.tiers import Tiers  # noqa: E402
from baselib.paths import VARIABLE  # noqa: E402
from cpuconv import origin  # noqa: E402
from cpuconv.conv.choice import layout_candidates  # noqa: E402
from cpuconv.conv.choice.target import Target  # noqa: E402
from cpuconv.graph.ir import Graph  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.isa.features import rounds_to_half  # noqa: E402
from cpuconv.network.selection import layout_files  # noqa: E402
from cpuconv.network.sizes.prepared import Rewriting, prepared  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402

TEXT = """g (float[1,20,{height},9] x) => (float[1,24,{height},9] y)
<float[20,20,3,3] w, float[24,20,1,1] v> {{
  a = Conv<pads = [1, 1, 1, 1]>(x, w)
  b = Clip(a, low, high)
  c = Softmax<axis = {axis}>(b)
  y = Conv(c, v)
}}"""


def graph(axis: int = 3, high: float = 6.0, height: int = 9) -> Graph:
    model = parse(TEXT.format(axis=axis, height=height))
    constants = {"w": np.ones((20, 20, 3, 3)), "v": np.ones((24, 20, 1, 1)), "low": np.float32(0), "high": high}
    tensors = [onnx.numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in constants.items()]
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensors)
    return prepared(read(model), {}, Rewriting()).graph


@pytest.fixture
def target() -> Target:
    return Target(current(), 1)


@pytest.fixture
def folder(tmp_path, monkeypatch, here):
    """The folder of a session that keeps layouts."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    here.persistent, here.tiers = True, Tiers(None, Store(tmp_path / "rows.sqlite"))
    return tmp_path / layout_files.FOLDER


@pytest.fixture
def searches(monkeypatch) -> list:
    """The problems that the model is asked about."""
    asked = []
    for name in ("search", "cheapest"):
        usual = getattr(layout_candidates, name)
        monkeypatch.setattr(
            layout_candidates,
            name,
            lambda problem, *a, usual=usual, **k: asked.append(problem) or usual(problem, *a, **k),
        )
    return asked


def told(plan) -> tuple:
    offers = [
        (str(each.node), each.offer and (each.offer.inputs, each.offer.outputs, each.offer.seconds))
        for each in plan.nodes
    ]
    return offers, plan.plan, plan.decided_by, plan.weighed, plan.decisions().to_dict(), plan.outputs, plan.anew


def test_what_is_kept_is_what_would_be_chosen(folder, target, searches, here):
    chosen = layout_files.load_or_plan_layout(graph(), target)
    counts = dict(here.untuned.counts)
    assert searches and counts and len(list(folder.iterdir())) == 1
    here.untuned.counts.clear()
    here.forget_choices()
    searches.clear()
    again = layout_files.load_or_plan_layout(graph(), target)
    assert not searches and again.recorded is not None
    assert told(again) == told(chosen)
    assert dict(here.untuned.counts) == counts


def _tuned(here) -> None:
    row = Row(here.device, "mb1ic8ih9oc8kh3", "direct", "s", "ok", score=1.0)
    here.tiers._kept.put([row])


def test_what_follows_another_size_is_not_kept(folder, target):
    first = layout_files.load_or_plan_layout(graph(), target).decisions()
    assert (
        layout_files.load_or_plan_layout(graph(height=10), target, first).decided_by == "record"
        and len(list(folder.iterdir())) == 1
    )


OTHERS = {
    "threads": lambda here: (graph(), Target(current(), 2)),
    "strategy": lambda here: (graph(), Target(current(), 1, "heuristic")),
    "precision": lambda here: (graph(), Target(current(), 1, precision="bfloat16")),
    "attribute": lambda here: (graph(axis=2), Target(current(), 1)),
    "constant": lambda here: (graph(high=5.0), Target(current(), 1)),
    "rows": lambda here: (_tuned(here), (graph(), Target(current(), 1)))[1],
    "files": lambda here: (graph(), Target(current(), 1)),
    "names": lambda here: (_renamed(graph()), Target(current(), 1)),
}


def _renamed(known: Graph) -> Graph:
    names = {"b": "other"}
    nodes = tuple(node.reads(names).writes(names) for node in known.nodes)
    return replace(known, nodes=nodes, values={names.get(name, name): value for name, value in known.values.items()})


@pytest.mark.parametrize("what", OTHERS)
def test_where_anything_that_decides_is_another_one_it_is_chosen_anew(
    folder, target, searches, here, monkeypatch, what
):
    layout_files.load_or_plan_layout(graph(), target)
    here.forget_choices()
    searches.clear()
    if what == "files":
        monkeypatch.setattr(origin, "files_state", lambda: "another")
    layout_files.load_or_plan_layout(*OTHERS[what](here))
    assert searches and len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("what", ["", "{", "[]", '{"plan": "a"}', "node", "candidate"])
def test_a_damaged_file_is_replaced(folder, target, searches, here, what):
    chosen = layout_files.load_or_plan_layout(graph(), target)
    (path,) = folder.iterdir()
    data = json.loads(path.read_text())
    nodes = data["decisions"]["nodes"]
    name = next(name for name in nodes if name.startswith("Conv"))
    if what == "node":
        del nodes[name]
    elif what == "candidate":
        nodes[name][3]["candidate"] = "direct(v=9,rows=9,cols=9,block=9)"
    path.write_text(json.dumps(data) if what in ("node", "candidate") else what)
    here.forget_choices()
    searches.clear()
    assert told(layout_files.load_or_plan_layout(graph(), target)) == told(chosen)
    assert searches and json.loads(path.read_text())["decisions"] == chosen.decisions().to_dict()


@pytest.mark.skipif(os.name != "posix", reason="pipes, links and modes are POSIX's")
@pytest.mark.parametrize("what", ["pipe", "link", "open", "large"])
def test_a_file_that_is_not_ours_alone_is_replaced(folder, target, searches, here, what, tmp_path):
    chosen = layout_files.load_or_plan_layout(graph(), target)
    (path,) = folder.iterdir()
    if what == "open":
        path.chmod(0o666)
    elif what == "large":
        path.write_text(path.read_text() + " " * layout_files.MAX_FILE_BYTES)
    else:
        path.rename(tmp_path / "elsewhere")
        os.mkfifo(path) if what == "pipe" else path.symlink_to(tmp_path / "elsewhere")
    here.forget_choices()
    searches.clear()
    assert told(layout_files.load_or_plan_layout(graph(), target)) == told(chosen) and searches
    assert path.is_file() and not path.is_symlink() and not path.stat().st_mode & 0o022
    searches.clear()
    layout_files.load_or_plan_layout(graph(), target)
    assert not searches


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_folder_that_others_may_write_to_is_not_written(folder, target, here):
    folder.mkdir(mode=0o755)
    folder.chmod(0o777)
    assert layout_files.load_or_plan_layout(graph(), target).decided_by == "model" and not list(folder.iterdir())


def test_files_are_bounded(folder, target, monkeypatch):
    monkeypatch.setattr(layout_files, "MAX_FILES", 4)
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.json").write_text("")
    layout_files.load_or_plan_layout(graph(), target)
    assert len(list(folder.iterdir())) == 3


def test_a_session_that_keeps_nothing_and_a_place_that_cannot_be_written(folder, target, here):
    here.persistent = False
    layout_files.load_or_plan_layout(graph(), target)
    assert not folder.exists()
    here.persistent = True
    folder.write_text("a file in the folder's place")
    assert layout_files.load_or_plan_layout(graph(), target).decided_by == "model"


@pytest.mark.parametrize("exact", [True, False])
def test_what_follows_from_weights_is_not_kept(target, folder, exact):
    weights = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float16 if exact else np.float32)
    model = parse("g (float[1,300] x) => (float[1,200] y) <float[300,200] w> { y = MatMul(x, w) }")
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights.astype(np.float32), "w"))
    layout_files.load_or_plan_layout(prepared(read(model), {}, Rewriting()).graph, target)
    assert folder.is_dir() == (not exact or not rounds_to_half())
