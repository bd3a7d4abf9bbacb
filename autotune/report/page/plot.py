"""Roofline plot as SVG: operations per second over operations per byte, both on logarithmic axes.

Operations are those that the algorithm executes, so all points are below the roofs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement

from autotune.machine.roofline import BANDWIDTH, COMPUTE, DTYPE, OVERHEAD, Roofs, Verdict, Work
from autotune.report.table_rows import ProblemRow
from baselib.text import number

WIDTH, HEIGHT = 400.0, 320.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 8.0, 8.0, 40.0
MARGIN = 1.5  # factor by which the axes extend beyond the data
ROOM = 3.0  # factor beyond the closest level's ridge, for its label
MIN_AREA, MAX_AREA = 20.0, 260.0  # area of a marker
FIRST, UNDER = 14.0, 10.0  # start of a roof's label: distance along the line from its lower end, and below it
LABEL = 96.0  # length of a roof's label
CROWDED = 13.0  # min. distance of the previous roof for a label that is not shifted

# Path of a marker of radius 1, by the kind of limit.
KINDS = {
    COMPUTE: "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0z",
    BANDWIDTH: "M-.9,-.9h1.8v1.8h-1.8z",
    OVERHEAD: "M0,-1.2L1.2,0L0,1.2L-1.2,0z",
}


class Axis:
    """A logarithmic scale from `low` to `high`, from pixel `start` to `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float, room: float = MARGIN) -> None:
        self.low, self.high = min(values) / room, max(values) * MARGIN
        self.start, self.end = start, end

    @property
    def decade(self) -> float:
        """Length of a factor of 10, in pixels."""
        return (self.end - self.start) / math.log10(self.high / self.low)

    def at(self, value: float) -> float:
        """Return the pixel coordinate of a value."""
        return self.start + self.decade * math.log10(value / self.low)

    def ticks(self) -> Iterator[float]:
        """Yield powers of ten, on a short axis also their double and fivefold values."""
        steps = (1, 2, 5) if self.high / self.low < 10**2.5 else (1,)
        for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1):
            yield from (step * 10.0**power for step in steps if self.low <= step * 10.0**power <= self.high)


def plot(lines: Sequence[ProblemRow], name: str) -> Element | None:
    """Plot lines below their roofs, linked to their rows of the table `name`; None if the roofs are unknown."""
    roofs = next((line.roofs for line in lines if line.verdict is not None), None)
    if roofs is None:
        return None
    shown = [(place, line, line.work, line.verdict) for place, line in enumerate(lines) if line.work and line.verdict]
    peaks = {work.dtype: roofs.peak(work.dtype) or roofs.fma_gflops for _, _, work, _ in shown}
    ridges = [peak / level.gbs for level in roofs.levels for peak in peaks.values() if math.isfinite(level.gbs)]
    speeds = [line.executed_gflops for _, line, _, _ in shown]
    x = Axis([*(work.intensity for _, _, work, _ in shown), *ridges], LEFT, WIDTH - RIGHT, ROOM)
    y = Axis([*speeds, *peaks.values()], HEIGHT - BOTTOM, TOP)
    drawing = Element("svg", {"class": "plot", "viewBox": f"0 0 {WIDTH:g} {HEIGHT:g}", "role": "group"})
    drawing.set("aria-label", "Roofline plot")
    _axes(drawing, x, y)
    _roofs(drawing, x, y, roofs, peaks)
    total = sum(line.seconds for _, line, _, _ in shown)
    # The largest first, so that none is covered.
    for place, line, work, verdict in sorted(shown, key=lambda point: -point[1].seconds):
        area = MIN_AREA + MAX_AREA * line.seconds / total
        link = SubElement(drawing, "a", href=f"#{name}r{place}")
        SubElement(link, "title").text = _words(line, work, verdict)
        spot = x.at(work.intensity), y.at(line.executed_gflops)
        marker(link, verdict.kind, *spot, math.sqrt(area / math.pi))
    return drawing


def marker(parent: Element, kind: str, x: float, y: float, radius: float) -> None:
    """Add the marker of a line that is bound by `kind`."""
    transform = f"translate({x:.1f} {y:.1f}) scale({radius:.2f})"
    SubElement(parent, "path", {"class": f"marker {kind}", "d": KINDS[kind], "transform": transform})


def _words(line: ProblemRow, work: Work, verdict: Verdict) -> str:
    own = number(line.gflops, ".1f")
    executed = f"{line.executed_gflops:.1f} GFLOP/s executed, {work.intensity:.3g} FLOP/byte"
    reached = f"{verdict.share:.0%} of the {verdict.roof} roof, bound by {verdict}"
    return f"{line.title}: {own} GFLOP/s ({executed}); {reached}; {line.algorithm}"


def _axes(drawing: Element, x: Axis, y: Axis) -> None:
    grid = SubElement(drawing, "g", {"class": "grid"})
    for value in x.ticks():
        _line(grid, x.at(value), y.start, x.at(value), y.end)
        _label(grid, f"{value:g}", x.at(value), y.start + 14, "middle")
    for value in y.ticks():
        _line(grid, x.start, y.at(value), x.end, y.at(value))
        _label(grid, f"{value:g}", x.start - 4, y.at(value) + 4, "end")
    names = SubElement(drawing, "g", {"class": "axis"})
    _label(names, "FLOP per byte of input, weights and output", (x.start + x.end) / 2, HEIGHT - 8, "middle")
    _label(names, "GFLOP/s executed", 14, (y.start + y.end) / 2, "middle", -90)


def _roofs(drawing: Element, x: Axis, y: Axis, roofs: Roofs, peaks: Mapping[str, float]) -> None:
    """Draw a line per data type's peak, and per memory level up to the highest peak."""
    group = SubElement(drawing, "g", {"class": "roofs"})
    levels = [level for level in roofs.levels if math.isfinite(level.gbs)]
    for dtype, gflops in peaks.items():
        first, name = max(x.low, min(gflops / level.gbs for level in levels)), "FMA" if dtype == DTYPE else dtype
        _line(group, x.at(first), y.at(gflops), x.end, y.at(gflops))
        _label(group, f"{name} {gflops:.0f} GFLOP/s", x.end - 2, y.at(gflops) - 4, "end")
    highest = max(peaks.values())
    angle = -math.degrees(math.atan2(-y.decade, x.decade))
    along = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    above, shift = None, 0.0
    for level in levels:
        begin = max(x.low, y.low / level.gbs)
        spot = x.at(begin), y.at(begin * level.gbs)
        _line(group, *spot, x.at(highest / level.gbs), y.at(highest))
        # Lines are parallel; this is the perpendicular distance from the line above.
        offset = math.log10(level.gbs) * abs(y.decade) * along[0]
        shift = shift + LABEL if above is not None and above - offset < CROWDED else FIRST
        above = offset
        place = spot[0] + shift * along[0] - UNDER * along[1], spot[1] + shift * along[1] + UNDER * along[0]
        _label(group, f"{level.name} {level.gbs:.0f} GB/s", *place, "start", angle)


def _line(parent: Element, x1: float, y1: float, x2: float, y2: float) -> None:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    SubElement(parent, "line", {name: f"{value:.1f}" for name, value in ends.items()})


def _label(parent: Element, text: str, x: float, y: float, anchor: str, angle: float = 0.0) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    if angle:
        place["transform"] = f"rotate({angle:.1f} {x:.1f} {y:.1f})"
    SubElement(parent, "text", place).text = text
