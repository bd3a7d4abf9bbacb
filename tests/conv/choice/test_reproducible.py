"""The same bits on any number of threads; other limits choose from what is stored; what keys say."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cpuconv
from autotune.machine.device import fingerprint
from autotune.store.rows import RowLimits
from autotune.store.store import Store
from autotune.wisdom import exchange
from autotune.wisdom.document import render
from autotune.wisdom.tiers import Tiers
from cpuconv.conv import session
from cpuconv.conv.choice import model, select
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.recipe import Candidate, workspace_bytes
from cpuconv.errors import ArgumentError, WorkspaceError
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.workload import workload
from support import oracle
from support.example import BLOCKED, PROBLEM, W, X
from support.tuner.stored import DEVICE, row, timed

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
WORKERS = (1, 2, 3, 7, 16)  # of which a small machine runs some in turn
DEEP = ConvProblem(1, 640, 5, 6, 48, 3, 3, pads=(1, 1, 1, 1))  # weight panels that pass in parts


def spread(found: list, most: int = 5) -> list:
    return found[:: max(1, len(found) // most)]


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("solver", oracle.SOLVERS, ids=lambda solver: solver.name)
def test_bits_depend_on_what_rounding_names_alone(solver):
    """Neither on the workers nor on the other parameters."""
    home = oracle.home(solver)
    blocked = replace(home, n=2, in_layout=BLOCKED, out_layout=BLOCKED, residual=True, activation="silu")
    for problem in (home, blocked, *([DEEP] if solver.applicable(DEEP, current()) is None else [])):
        given = oracle.operands(problem)
        found: dict[str, bytes] = {}
        for params in spread(list(solver.candidates(problem, current()))):
            candidate = Candidate(solver, params)
            assert str(candidate).startswith(candidate.rounding)
            for threads in WORKERS:
                plan = oracle.plan(replace(problem, threads=threads), given, candidate)
                bits = plan(given.x, residual=given.residual).tobytes()
                assert bits == found.setdefault(candidate.rounding, bits), (str(candidate), threads)


def names(problem: ConvProblem) -> list[str]:
    return [str(each.candidate) for each in model.ranking(problem)]


def put(store: Store, problem: ConvProblem, seconds: dict[str, float]) -> None:
    """Rows as a tuner writes them."""
    for name, time in seconds.items():
        candidate = Candidate.parse(name)
        size = workspace_bytes(problem, candidate)
        store.put([timed(problem, name, time, workspace=size, accuracy=candidate.accuracy)])
    session.current.forget_choices()


def test_one_thread_decides_for_any_number(our_store: Store) -> None:
    one, two = PROBLEM, replace(PROBLEM, threads=2)
    of = {solver: [name for name in names(PROBLEM) if name.startswith(f"{solver}(")] for solver in ("direct", "im2col")}
    put(our_store, one, {of["direct"][0]: 2e-3, of["im2col"][0]: 1e-3})
    put(our_store, two, {of["direct"][0]: 1e-3, of["im2col"][0]: 3e-3, of["im2col"][1]: 2e-3})
    assert str(select.choose(two, "cached", Limits()).candidate) == of["direct"][0]
    chosen = select.choose(two, "cached", Limits(reproducible=True))
    assert (str(chosen.candidate), chosen.decided_by) == (of["im2col"][1], "store")
    assert str(select.choose(one, "cached", Limits(reproducible=True)).candidate) == of["im2col"][0]


@pytest.mark.parametrize("strategy", ["heuristic", "cached"])
@pytest.mark.parametrize("layout", ["NCHW", "auto"])
def test_reproducible_plans(our_store: Store, strategy: str, layout: str) -> None:
    options = {"padding": 1, "reproducible": True, "strategy": strategy}
    results = []
    for threads in sorted({1, oracle.THREADS}):
        made = cpuconv.plan(X.shape, W, in_layout="NCHW", out_layout=layout, threads=threads, **options)
        results.append((made.out_layout, made(X).tobytes()))
        if layout == "NCHW":
            y = cpuconv.conv2d(X, W, threads=threads, **options)
            np.testing.assert_array_equal(y, made(X))
    assert len(set(results)) == 1
    assert cpuconv.explain(X.shape, W.shape, threads=1, **options).algorithm


def test_reproducible_is_a_bool():
    for value in (1, None, "yes"):
        with pytest.raises(ArgumentError, match="'reproducible' must be True or False, not"):
            cpuconv.plan(X.shape, W, padding=1, reproducible=value)


def test_limits_choose_from_what_is_stored(our_store: Store, no_timing) -> None:
    ranked = [each.candidate for each in model.ranking(PROBLEM)]
    sizes = {str(each): workspace_bytes(PROBLEM, each) for each in ranked}
    large = next(str(each) for each in ranked if each.accuracy == "standard")
    exact = [str(each) for each in ranked if each.accuracy == "exact"]
    small = min(exact, key=sizes.__getitem__)
    other = next(name for name in exact if name != small and sizes[name] >= sizes[small])
    put(our_store, PROBLEM, {large: 1e-3, other: 2e-3, small: 3e-3})

    def chosen(**options) -> tuple[str, str]:
        made = cpuconv.plan(X.shape, W, padding=1, threads=1, **options)
        return made.algorithm, made.decided_by

    assert chosen() == (large, "store")
    assert chosen(accuracy="exact") == (other, "store")
    assert chosen(workspace_limit=sizes[small])[0] in {name for name in sizes if sizes[name] <= sizes[small]}
    assert chosen(algorithm=small.partition("(")[0])[1] == "store"
    assert chosen(algorithm=small) == (small, "named")
    untimed = next(
        name
        for name in ("direct", "im2col", "winograd")
        if name not in {n.partition("(")[0] for n in (large, other, small)}
    )
    assert chosen(algorithm=untimed)[1] in ("model", "neighbour")
    with pytest.raises(WorkspaceError):
        chosen(algorithm="winograd", workspace_limit=0)


def test_rows_that_name_what_no_solver_tries_are_passed_over(our_store: Store) -> None:
    """Kernels trust their parameters: those of a row must be the solver's own."""
    for name in (
        "direct(v=99,rows=1,cols=1,block=0)",
        "direct(v=1)",
        "magic(v=1)",
        "winograd(rows=-4,cols=4,v=1,n=1,block=1,chunk=1)",
    ):
        sources = Candidate(oracle.SOLVERS[1], None).sources
        our_store.put([row(name, 1e-9, device=DEVICE, problem=PROBLEM.key, sources=sources)])
        session.current.forget_choices()
        made = cpuconv.plan(X.shape, W, padding=1, threads=1)
        assert made.algorithm != name and made.decided_by != "store"


def test_the_layer_that_decides_is_told(our_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned before stored before shipped."""
    first, second, third = names(PROBLEM)[:3]
    our_store.register(fingerprint())
    monkeypatch.setattr(session.current, "tiers", Tiers(tmp_path / "tables"))

    def decided(**options) -> tuple[str, str]:
        session.current.forget_choices()
        made = cpuconv.plan(X.shape, W, padding=1, threads=1, **options)
        assert made.explain().decided_by == made.decided_by
        return made.algorithm, made.decided_by

    put(our_store, PROBLEM, {first: 1e-3})
    (tmp_path / "tables").mkdir()
    table = exchange.table_of(exchange.from_store(our_store), DEVICE, RowLimits.of(workload), workload.sources_of)
    (tmp_path / "tables" / f"{DEVICE}.json").write_text(render(table))
    our_store.prune(DEVICE, keep=False)
    assert decided() == (first, "shipped")
    our_store.register(fingerprint())
    put(our_store, PROBLEM, {second: 1e-3})
    pinned = tmp_path / "pinned.json"
    pinned.write_text(render(exchange.from_store(our_store)))
    assert decided() == (second, "store")
    put(our_store, PROBLEM, {third: 1e-4})
    assert decided() == (third, "store")
    monkeypatch.setenv("CPUCONV_WISDOM", str(pinned))
    assert decided() == (second, "pinned")
    assert decided(strategy="heuristic")[1] == "model"


@pytest.mark.parametrize("solver", oracle.SOLVERS, ids=lambda solver: solver.name)
def test_each_parameter_of_a_candidate_changes_its_name(solver) -> None:
    problem = oracle.home(solver)
    params = next(iter(solver.candidates(problem, current())))
    name = str(Candidate(solver, params))
    for field in dataclasses.fields(params):
        other = Candidate(solver, replace(params, **{field.name: getattr(params, field.name) + 1}))
        assert str(other) != name and Candidate.parse(str(other)) == other
    assert len({Candidate(each, None).sources for each in oracle.SOLVERS}) == len(oracle.SOLVERS)
