"""Speed targets of the project as data, and the check which of them a comparison meets.

Ratios are medians against the best of all peers of the run on each line. The problem alone decides which targets a line
belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autotune.machine.roofline import FMA
from bench import typed
from bench.peers import CPUCONV, OWN_F32
from bench.results import LineResult, geomean, mean_ratio
from bench.settings import Run
from bench.shapes import family
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types

Least = tuple[float, float]  # lower bounds with one thread, and with more
Belongs = Callable[[ConvProblem], bool]
BINDING = "the binding roof"


@dataclass(frozen=True)
class Mean:
    """Target for the geometric mean over all lines: against the best peer or, with `each`, against each peer."""

    name: str
    ratio: Least
    each: bool = False
    against: tuple[str, ...] = ()  # engines instead of all peers


@dataclass(frozen=True)
class Lines:
    """Target for every line of a group: the ratio or, where given, the share of a roof."""

    name: str
    belongs: Belongs
    ratio: Least
    share: Least | None = None
    roof: str = FMA


@dataclass(frozen=True)
class Share:
    """Target for the geometric mean of the shares of the FMA roof, over the lines for which `solvers` are selected."""

    name: str
    least: float
    solvers: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Result of a target: the required figure, the lowest one, and the lines or peers that miss it."""

    name: str
    wanted: str
    reached: str
    short: tuple[str, ...]

    @property
    def met(self) -> bool:
        """Whether nothing misses the target."""
        return not self.short


def of(*names: str, more: Belongs = lambda problem: True) -> Belongs:
    """Return a predicate for problems of some families of `bench.shapes`, with a further condition."""
    return lambda problem: family(problem) in names and more(problem)


def _plane(least: int, most: float, channels: int = 1) -> Belongs:
    """Return a predicate: the shorter side of the output is `least` to `most`, and C and K are at least `channels`."""
    return lambda p: least <= min(p.oh, p.ow) <= most and min(p.c, p.k) >= channels


ANY = float("inf")
TARGETS: tuple[Mean | Lines, ...] = (
    Mean("geometric mean, best peer", (1.15, 1.15)),
    Mean("geometric mean, each peer", (1.5, 1.5), each=True),
    Lines("every line", lambda p: True, (0.95, 0.92)),
    Lines("3x3 s1, planes from 28, C and K from 64", of("3x3 s1", more=_plane(28, ANY, 64)), (1.20, 1.20)),
    Lines("3x3 s1, planes about 14", of("3x3 s1", more=_plane(11, 27)), (1.10, 1.10)),
    Lines("3x3 s1, planes about 7", of("3x3 s1", more=_plane(1, 10)), (1.05, 1.05)),
    Lines("5x5 and up, 1x7, 7x1", of("5x5 and up", "1x7, 7x1"), (1.03, 1.03)),
    Lines("dilated", of("dilated"), (1.3, 1.3)),
    Lines("grouped", of("grouped"), (1.3, 1.3)),
    Lines("1x1", of("1x1", "1x1 strided"), (1.03, 1.03), (0.94, 0.90)),
    Lines("first layer", of("first layer"), (1.03, 1.03), (0.94, 0.90)),
    Lines("3x3 s2", of("strided", more=lambda p: (p.r, p.s, p.stride) == (3, 3, (2, 2))), (1.03, 1.03), (0.94, 0.90)),
    Lines("depthwise", of("depthwise"), (1.20, 1.20), (0.85, 0.85), BINDING),
)

ROOF = Share("share of the types' roof, pointwise and direct (without AMX)", 0.85, ("pointwise", "direct"))
AMX = Mean("geometric mean, OpenVINO (with AMX)", (1.1, 1.1), against=("openvino",))
TYPED: dict[str, tuple[Mean | Lines | Share, ...]] = {
    "bf16": (
        Mean("geometric mean, best peer", (1.5, 1.4)),
        Lines("every line", lambda p: True, (0.97, 0.97)),
        AMX,
        ROOF,
    ),
    "int8": (
        Mean("geometric mean, best peer", (1.3, 1.25)),
        Lines("every line", lambda p: True, (0.95, 0.95)),
        Mean("geometric mean, own fp32", (2.6, 2.6), against=(OWN_F32,)),
        AMX,
        ROOF,
    ),
}


def targets_of(types: Types) -> tuple[Mean | Lines | Share, ...]:
    """Return the targets of comparisons in some types; empty if the types have none."""
    if types == ALL_F32:
        return TARGETS
    return next((targets for name, targets in TYPED.items() if typed.NAMES[name] == types), ())


def check(results: Sequence[LineResult], run: Run) -> list[Verdict]:
    """Return a verdict for each target that applies to these results."""
    return [
        verdict for target in targets_of(run.settings.types) for verdict in _CHECKS[type(target)](target, results, run)
    ]


def _check_mean(target: Mean, results: Sequence[LineResult], run: Run) -> Iterator[Verdict]:
    least = _least(target.ratio, run)
    groups = {run.names[key]: (key,) for key in run.peers} if target.each else {"": target.against or run.peers}
    means = {name: ratio.median for name, group in groups.items() if (ratio := mean_ratio(results, group))}
    if means:
        lowest = min(means, key=lambda name: means[name])
        short = tuple(f"{name} {mean:.2f}".strip() for name, mean in means.items() if mean < least)
        yield Verdict(target.name, f"{least:.2f}", f"{means[lowest]:.2f} {lowest}".strip(), short)


def _check_lines(target: Lines, results: Sequence[LineResult], run: Run) -> Iterator[Verdict]:
    subject = [(result, _share(result, target)) for result in results if target.belongs(result.line.problem)]
    if not subject or not run.peers:
        return
    ratios = {result.line.label: ratio.median for result, _ in subject if (ratio := result.ratio(run.peers))}
    least, share = _least(target.ratio, run), _least(target.share, run) if target.share else None
    wanted = f"{least:.2f}" if share is None else f"{least:.2f} or {share:.0%} of {target.roof}"
    short = []
    for result, reached in subject:
        median = ratios.get(result.line.label)
        if median is None:
            short.append(f"{result.line.label} not measured")
        elif median < least and (share is None or reached < share):
            short.append(f"{result.line.label} {median:.2f}" + (f", {reached:.0%}" if share is not None else ""))
    lowest = min(ratios, key=lambda label: ratios[label], default="")
    yield Verdict(target.name, wanted, f"{ratios[lowest]:.2f} {lowest}" if lowest else "–", tuple(short))


def _check_share(target: Share, results: Sequence[LineResult], run: Run) -> Iterator[Verdict]:
    reached = {}
    for result in results:
        ours, share = result.of(CPUCONV), result.shares().get(FMA)
        if ours is not None and share and ours.algorithm.partition("(")[0] in target.solvers:
            reached[result.line.label] = share
    if reached:
        mean, lowest = geomean(reached.values()), min(reached, key=lambda label: reached[label])
        short = () if mean >= target.least else (f"{lowest} {reached[lowest]:.0%}",)
        yield Verdict(target.name, f"{target.least:.0%}", f"{mean:.0%} of {len(reached)} lines", short)


_CHECKS: dict[type, Callable[..., Iterator[Verdict]]] = {Mean: _check_mean, Lines: _check_lines, Share: _check_share}


def _share(result: LineResult, target: Lines) -> float:
    shares = result.shares()
    return max(shares.values(), default=0.0) if target.roof == BINDING else shares.get(target.roof, 0.0)


def _least(least: Least, run: Run) -> float:
    return least[run.settings.threads > 1]
