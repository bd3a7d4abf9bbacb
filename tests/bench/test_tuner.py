"""The tuner's figures: shapes drawn, figures judged, the small parts run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.progress import Progress as Bar

from autotune.timing.rounds import Round, Rounds
from baselib.paths import VARIABLE
from bench import tuner
from bench.shapes import drawn, family
from bench.tuning import choices, session
from bench.tuning.figures import Figure, table
from bench.tuning.session import UNCOUNTED, Session, Times
from cpuconv.conv.choice import model
from support.tuner import fake


def test_drawn_shapes_are_the_same_for_a_seed_and_differ_otherwise() -> None:
    first = drawn.draw(40, 1)
    assert first == drawn.draw(40, 1)
    assert len({problem.key for problem in first}) == 40
    assert not {problem.key for problem in first} & {problem.key for problem in drawn.draw(40, 2)}
    assert all(drawn.FLOPS[0] <= problem.flops <= drawn.FLOPS[1] for problem in first)
    assert drawn.draw(1, 1, threads=2)[0].threads == 2


def test_drawn_shapes_are_of_every_family() -> None:
    many = drawn.draw(300, 0)
    assert len({family(problem) for problem in many}) >= 8
    assert all(any(reason is None for _, reason in model.applicable(problem)) for problem in many)


def test_figures_against_targets() -> None:
    assert Figure("part", "name", 1.0, target=1.0).met is True
    assert Figure("part", "name", 1.1, target=1.0).met is False
    assert Figure("part", "name", 94.0, target=95.0, most=False).met is False
    assert Figure("part", "name", 1.0).met is None
    lines = table([Figure("a", "b", 1.234, "×", 1.02), Figure("c", "d", 96.0, "%", 95.0, most=False)]).splitlines()
    assert lines[2].split() == ["a", "b", "1.234", "×", "≤", "1.02", "×", "not", "met"]
    assert lines[3].split() == ["c", "d", "96", "%", "≥", "95", "%", "met"]


def visits(*ratios: float) -> list[Rounds]:
    """Of two rivals that differ by so much on each preparation."""
    return [Rounds([Round(1, {"a": ratio, "b": 1.0})] * 9) for ratio in ratios]


def test_times_are_compared_by_preparations() -> None:
    times = Times(["a", "b"], visits(1.0, 1.5, 2.0))
    assert times.compare(0, 1).centre == pytest.approx((1.5 * 2**0.5) ** 0.5)  # logs' mean pairs: the 3rd and 4th of 6
    assert times.compare(1, 0).centre == pytest.approx(1 / times.compare(0, 1).centre)
    assert times.spread() == pytest.approx(times.compare(0, 1).centre - 1)
    assert Times(["a", "a"], [Rounds()]).compare(0, 1).centre == 1.0


@pytest.mark.parametrize(
    "ratios, slower",
    [
        ([1.02, 1.02, 1.021], True),
        ([1.02, 1.0, 1.0], False),  # on one preparation only
        ([0.98, 0.98, 0.981], False),
        ([1.0, 1.0, 1.0], False),
        ([1.02], True),  # there are rounds alone to tell
    ],
)
def test_noise_is_what_preparations_differ_by(ratios: list[float], slower: bool) -> None:
    assert (Times(["a", "b"], visits(*ratios)).compare(0, 1).low > 1.0) == slower


@pytest.mark.parametrize(
    "ratios, precise",
    [([1.0, 1.0, 1.0], True), ([1.2, 1.2, 1.205], True), ([0.98, 1.02, 1.0], False)],
)
def test_preparations_that_differ_are_not_enough(ratios: list[float], precise: bool) -> None:
    assert Times(["a", "b"], visits(*ratios)).is_precise() == precise
    assert Times(["a", "a"], [Rounds()]).is_precise()


def test_small_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before, file = os.environ[VARIABLE], tmp_path / "out.json"
    arguments = ["--shapes", "1", "--parts", "lookup,open", "--calls", "50", "--rows", "400", "--json", str(file)]
    assert tuner.main(arguments) in (0, 1)
    figures = json.loads(file.read_text())["figures"]
    assert [figure["part"] for figure in figures] == ["lookup", "lookup", "open"]
    assert all(figure["value"] > 0 and figure["target"] for figure in figures)
    assert os.environ[VARIABLE] == before
    assert "400 rows, and the first look-up" in capsys.readouterr().out
    for wrong in (["--efforts", "much"], ["--parts", "lookup,all"]):
        with pytest.raises(SystemExit, match="must be of"):
            tuner.main(wrong)


@pytest.fixture(name="session")
def fake_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Warmups of the fake workload, on its clock."""
    monkeypatch.setattr(session, "workload", fake.workload)
    monkeypatch.setattr(session, "WORKERS", None)
    fake.install(monkeypatch.setattr)
    sources = ("good:1", "close:1", "hidden:1", "tie:1")
    problems = [each for source in sources for each in fake.workload.load(source)]
    options = tuner.parser().parse_args([])
    options.parts, options.efforts = options.parts.split(","), options.efforts.split(",")
    return Session(options, problems, tmp_path, Bar(disable=True))


def test_warmups_are_judged(session: Session) -> None:
    found = {figure.name.partition(",")[0]: figure for figure in choices.regret(session)}
    # Of forty ways the quick effort tries those eight that the model likes best, and these are slow.
    assert found["quick: worst"].name.endswith("hidden:1") and found["quick: worst"].value > 2.0
    assert found["normal: worst"].value < found["quick: worst"].value
    assert 1.0 <= found["quick: geomean over 4 shapes"].value < found["quick: worst"].value
    better = {figure.name: figure for figure in choices.heuristic(session)}
    assert better["quick: tuned time over the model's, geomean"].value < 0.9
    assert better["normal: shapes slower beyond noise"].value == 0
    assert all(figure.met for figure in choices.repeat(session))
    assert [figure.target for figure in choices.seconds(session)] == [1.5, 6.0]
    assert not list(session.folder.glob(f"*-{UNCOUNTED}.sqlite"))


def test_a_judgement_times_each_rival_as_often(session: Session) -> None:
    found = session._timed(session.problems[0], ["model", "fast"], turn=0)
    assert [len(found.samples(name)) for name in ("model", "fast")] == [session.options.rounds] * 2
    assert found.compare("model", "fast").centre == pytest.approx(3.0, rel=0.05)


def test_without_regret_nothing_is_tried_exhaustively(session: Session) -> None:
    session.options.parts, session.options.efforts = ("seconds",), ("quick",)
    list(choices.seconds(session))
    turns = (UNCOUNTED, *range(session.options.warmups))
    assert {file.name for file in session.folder.glob("*.sqlite")} == {f"quick-{turn}.sqlite" for turn in turns}


def test_nothing_to_judge_is_said(session: Session) -> None:
    session.problems = session.problems[:0]
    with pytest.raises(SystemExit, match="shape-limit"):
        list(choices.regret(session))
