"""The algorithm and layouts that a plan takes, under which limits, and how it reports them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

import cpuconv
import layouts
from autotune.machine.device import fingerprint
from autotune.wisdom.tiers import Tiers
from cpuconv.conv import session
from cpuconv.conv.choice import auto_settings, model, tuned
from cpuconv.conv.recipe import Candidate
from cpuconv.conv.session import Session
from cpuconv.errors import ArgumentError, WorkspaceError
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import Machine, machine
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import first_layer, im2col
from support import oracle
from support.example import BLOCKED, EXPECTED, PROBLEM, W, X, close, conv


def test_cached_times_nothing(no_timing):
    kept = cpuconv.plan(X.shape, W, padding=1)
    assert kept.decided_by in ("model", "store")
    close(kept(X), EXPECTED)
    close(cpuconv.conv2d(X, W, padding=1), EXPECTED)


@pytest.mark.parametrize("threads", [1, 2])
def test_only_few_input_channels_take_the_first_layers_algorithm(threads, described):
    first = ConvProblem(1, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3), threads=threads)
    later = ConvProblem(1, 128, 56, 56, 128, 3, 3, (2, 2), (1, 1, 1, 1), threads=threads)
    for problem, wanted in ((first, True), (later, False)):
        problem = replace(problem, in_layout="NCHW", out_layout="NCHW")
        assert (model.by_model(problem, model.Limits()).solver is first_layer.SOLVER) == wanted


def test_a_single_pixel_takes_the_vectors_whose_weights_come_fastest(described):
    problem = ConvProblem(1, 4096, 1, 1, 4096, 1, 1, in_layout="NCHW", out_layout="NCHW")
    chosen = model.by_model(problem, model.Limits())
    shares = described.isa.single
    assert chosen.solver.name != "pointwise" or shares[min(chosen.params.v, len(shares)) - 1] == max(shares)


BIG = ((1, 64, 56, 56), (64, 64, 3, 3))


@pytest.mark.parametrize("accuracy", model.ACCURACIES)
def test_accuracy_classes(accuracy, described):
    told = cpuconv.explain(*BIG, padding=1, accuracy=accuracy, strategy="heuristic", threads=1)
    chosen = Candidate.parse(told.algorithm)
    assert model.Limits(accuracy).admits_accuracy(chosen.accuracy)
    assert (chosen.solver.name in ("winograd", "fft")) == (accuracy != "exact")
    left_out = {line.candidate: line.left_out for line in told.lines if line.left_out}
    for line in told.lines:
        if "(" in line.candidate and not model.Limits(accuracy).admits_accuracy(
            Candidate.parse(line.candidate).accuracy
        ):
            assert "accuracy" in left_out[line.candidate]


def test_accuracy_binds_named_algorithms():
    with pytest.raises(ArgumentError, match="'accuracy' must be one that winograd meets, not 'exact'"):
        cpuconv.plan(X.shape, W, padding=1, algorithm="winograd", accuracy="exact")
    full = cpuconv.plan(X.shape, W, padding=1, algorithm="winograd", strategy="heuristic").algorithm
    with pytest.raises(ArgumentError, match=r"'accuracy' must be one that winograd\(rows=.* meets, not 'exact'"):
        cpuconv.plan(X.shape, W, padding=1, algorithm=full, accuracy="exact")
    assert cpuconv.plan(X.shape, W, padding=1, algorithm=full).algorithm == full


def test_workspace_limit():
    sizes = sorted({line.workspace for line in cpuconv.explain(*BIG, padding=1).lines if line.workspace is not None})
    least = sizes[0]
    for limit in (least, (least + sizes[-1]) // 2, sizes[-1]):
        told = cpuconv.explain(*BIG, padding=1, workspace_limit=limit)
        assert next(line.workspace for line in told.lines if line.chosen) <= limit
    made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic", threads=1)
    tight = min(line.workspace for line in made.explain().lines if line.workspace is not None)
    fitted = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic", threads=1, workspace_limit=tight)
    assert fitted.workspace_bytes <= tight
    close(fitted(X), EXPECTED)
    assert tight > 0
    with pytest.raises(WorkspaceError, match=f"'workspace_limit' must be at least {tight} bytes for this problem, not"):
        conv(workspace_limit=tight - 1)
    named = {"padding": 1, "algorithm": cpuconv.plan(X.shape, W, padding=1, algorithm="winograd").algorithm}
    size = cpuconv.plan(X.shape, W, **named).workspace_bytes
    assert cpuconv.plan(X.shape, W, workspace_limit=size, **named).workspace_bytes == size
    with pytest.raises(WorkspaceError, match=f"'workspace_limit' must be at least {size} bytes for winograd"):
        cpuconv.plan(X.shape, W, workspace_limit=size - 1, **named)


def test_auto_layouts():
    made = cpuconv.plan(X.shape, W, padding=1, in_layout="auto", out_layout="auto", strategy="heuristic")
    assert {made.in_layout, made.out_layout} <= set(layouts.NAMES)
    y = made(layouts.from_nchw(X, made.in_layout))
    close(layouts.to_nchw(y, made.out_layout, 24), EXPECTED)
    half = cpuconv.plan(X.shape, W, padding=1, in_layout="NHWC", out_layout="auto", strategy="heuristic")
    assert half.in_layout == "NHWC"
    close(layouts.to_nchw(conv(out_layout="auto", in_layout="NCHW"), half.out_layout, 24), EXPECTED)


@pytest.mark.parametrize("c, k", [(3, 32), (32, 2), (64, 64)])
def test_few_channels_stay_in_planes(c, k, described):
    problem = ConvProblem(1, c, 20, 20, k, 3, 3, pads=(1, 1, 1, 1))
    found = auto_settings.resolve_layouts(problem, "auto", "auto", model.Limits())
    planes = [2 * channels <= described.isa.lanes for channels in (c, k)]
    assert all(layout == "NCHW" for layout, few in zip((found.in_layout, found.out_layout), planes, strict=True) if few)
    blocked = auto_settings.resolve_layouts(problem, BLOCKED, "auto", model.Limits())
    assert blocked.in_layout == BLOCKED


def test_auto_layouts_keep_to_the_workspace():
    """Whatever limit some layouts meet, `auto` meets."""
    shape, w = (1, 16, 12, 12), oracle.normal((16, 16, 1, 1))
    favourites = ("NCHW", BLOCKED)

    def sizes(a: str, b: str) -> list[int]:
        lines = cpuconv.explain(shape, w.shape, in_layout=a, out_layout=b, threads=1).lines
        return [line.workspace for line in lines if line.workspace is not None]

    found = {pair: min(sizes(*pair)) for pair in itertools.product(favourites, repeat=2)}
    assert len(set(found.values())) > 1
    for limit in found.values():
        auto = cpuconv.plan(shape, w, in_layout="auto", out_layout="auto", threads=1, workspace_limit=limit)
        assert auto.workspace_bytes <= limit
    with pytest.raises(WorkspaceError):
        cpuconv.plan((1, 16, 12, 12), W[:, :16], in_layout="auto", out_layout="auto", workspace_limit=0, padding=1)


def test_what_a_plan_says():
    made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic", threads=1)
    assert made.problem == PROBLEM
    assert made.in_layout == made.out_layout == "NCHW"
    assert made.packed_weight_bytes >= W.nbytes
    assert "\n" not in made.algorithm and str(Candidate.parse(made.algorithm)) == made.algorithm
    assert made.algorithm in repr(made) and PROBLEM.key in repr(made)
    told = made.explain()
    assert told.algorithm == made.algorithm and told.to_dict()["problem"] == PROBLEM.key
    (chosen,) = (line for line in told.lines if line.chosen)
    assert chosen.candidate == made.algorithm and chosen.workspace == made.workspace_bytes
    assert {line.candidate for line in told.lines if "(" not in line.candidate} == {
        name for name, reason in model.applicable(PROBLEM) if reason
    }
    assert str(told).splitlines()[1].startswith(made.algorithm)
    assert told.to_dict() == cpuconv.explain(X.shape, W.shape, padding=1, strategy="heuristic", threads=1).to_dict()


def test_named_algorithms_that_cannot():
    with pytest.raises(ArgumentError, match="'algorithm' must be one of pointwise, .*, not 'magic'"):
        cpuconv.plan(X.shape, W, algorithm="magic")
    with pytest.raises(ArgumentError, match=r"'algorithm' must be one that can run this problem \(pointwise: .*3x3"):
        cpuconv.plan(X.shape, W, algorithm="pointwise")
    with pytest.raises(ArgumentError, match="'algorithm' must be a solver with its parameters"):
        cpuconv.plan(X.shape, W, algorithm="direct(v=1)")
    with pytest.raises(ArgumentError, match="'algorithm' must be a candidate of this problem, such as direct"):
        cpuconv.plan(X.shape, W, algorithm="direct(v=99,rows=1,cols=1,block=1)")
    with pytest.raises(ArgumentError, match="'algorithm' must be one of"):
        cpuconv.plan(X.shape, W, algorithm=3)


@pytest.mark.parametrize("size", [(64, 64, 56), (5, 261, 28), (3, 64, 224)])
def test_the_tuner_meets_every_way_to_form_sums_first(size: tuple[int, int, int], described: Machine) -> None:
    c, k, h = size
    ranked = model.ranking(ConvProblem(1, c, h, h, k, 3, 3, pads=(1, 1, 1, 1)))
    order = model.tuning_order(ranked)
    assert order[0] is ranked[0] and len(order) == len(ranked)
    assert {str(each.candidate) for each in order} == {str(each.candidate) for each in ranked}
    bound = 1.5 * ranked[0].cost.estimate
    ways = {each.candidate.rounding for each in ranked if each.cost.estimate <= bound}
    if c > 3:  # else the first layer's own algorithm may be alone
        assert len(ways) > 1
    assert {each.candidate.rounding for each in order[: len(ways)]} == ways
    for part in (order[: len(ways)], order[len(ways) :]):
        assert [each.cost.estimate for each in part] == sorted(each.cost.estimate for each in part)


def test_im2col_writes_blocks_that_groups_share_float_by_float(monkeypatch):
    lanes = current().lanes
    shared = ConvProblem(1, 4 * lanes, 28, 28, 2 * lanes, 1, 1, groups=4, in_layout=BLOCKED, out_layout=BLOCKED)
    alike = (replace(shared, out_layout="NCHW"), replace(shared, groups=2), replace(shared, groups=1))
    for problem in (shared, *alike):
        for params in im2col.candidates(problem, current()):
            whole = im2col.cost(problem, params, machine())
            assert model.modelled_cost(problem, Candidate(im2col.SOLVER, params)) == whole
            with monkeypatch.context() as patch:
                patch.setattr(im2col, "_SCATTERED_CYCLES", 0.0)
                assert (whole.estimate > im2col.cost(problem, params, machine()).estimate) == (problem is shared)


def test_first_layer_pays_for_planes_that_are_far_apart(monkeypatch):
    lanes = current().lanes
    few = ConvProblem(1, lanes - 1, 28, 28, 2 * lanes, 3, 3, out_layout=BLOCKED)
    for problem in (few, replace(few, c=lanes)):
        params = next(iter(first_layer.candidates(problem, current())))
        whole = model.modelled_cost(problem, Candidate(first_layer.SOLVER, params))
        assert whole == first_layer.cost(problem, params, machine())
        with monkeypatch.context() as patch:
            patch.setattr(first_layer, "_DISTANT_PLANES", 0.0)
            assert (whole.estimate > first_layer.cost(problem, params, machine()).estimate) == (problem.c == lanes)


def test_a_session_may_ask_for_the_rows_of_another_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problem, asked = ConvProblem(1, 8, 9, 9, 8, 3, 3), []
    monkeypatch.setattr(Tiers, "know", lambda self, device, **how: asked.append(device))  # nothing is known of it
    for device in (None, "another"):
        monkeypatch.setattr(session, "current", Session(tables=tmp_path, persistent=False, device=device))
        assert tuned.best(problem, model.Limits()) is None
    assert asked == [fingerprint().key, "another"]


def test_what_is_asked_again_of_a_problem_is_not_computed_again(monkeypatch):
    problem = ConvProblem(1, 64, 29, 37, 128, 3, 3, pads=(1, 1, 1, 1))
    bounded, reordered = [], []
    bound, reorders = model._bound, model._reorders
    monkeypatch.setattr(model, "_bound", lambda *asked: bounded.append(asked[1]) or bound(*asked))
    monkeypatch.setattr(model, "_reorders", lambda *asked: reordered.append(asked[1:]) or reorders(*asked))
    model._bounds.cache_clear()
    model._costed.cache_clear()
    limits = model.Limits()
    best = model.cheapest(problem, limits)
    first, ways = len(bounded), len(reordered)
    assert first == len(model._able(problem, None)) and ways < len(model.ranking(problem))
    for accuracy in model.ACCURACIES:
        found = model.cheapest(problem, replace(limits, accuracy=accuracy))
        able = [each for each in model.ranking(problem) if model.why_excluded(problem, each, limits) is None]
        assert accuracy != limits.accuracy or found == best == able[0]
    assert model.search(problem, limits, "", best.cost.estimate, lambda candidate: False) is None
    assert len(bounded) == first
