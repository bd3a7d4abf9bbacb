"""Problems drawn at random within ranges."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

import layouts
from cpuconv.errors import ArgumentError
from cpuconv.problem.problem import ConvProblem

Range = st.SearchStrategy[int]


def upto(most: int, least: int = 1) -> Range:
    """All integers between these."""
    return st.integers(least, most)


def of(*values: int) -> Range:
    """Each of these as often."""
    return st.sampled_from(values)


# Channels in and out are those of a group; "pad" is drawn for each side, strides and dilation for each axis.
USUAL: dict[str, Any] = {
    "n": upto(3), "groups": of(1), "cg": upto(3), "kg": upto(3), "h": upto(12), "w": upto(12), "r": upto(4),
    "s": upto(4), "sh": upto(3), "sw": upto(3), "dh": upto(3), "dw": upto(3), "pad": upto(3, 0),
    "in_layout": of(*layouts.NAMES), "out_layout": of(*layouts.NAMES), "activation": of(None, "relu"),
    "residual": st.booleans(), "threads": of(1),
}  # fmt: skip


@st.composite
def problems(draw: Any, **ranges: Any) -> ConvProblem:
    """Problems whose kernels fit into the padded input; `ranges` in place of the usual. kg=None: as many as cg."""
    ranges = {**USUAL, **ranges}
    pad = ranges.pop("pad")
    v = {name: values if values is None else draw(values) for name, values in ranges.items()}
    try:
        return ConvProblem(
            v["n"], v["groups"] * v["cg"], v["h"], v["w"], v["groups"] * (v["kg"] or v["cg"]), v["r"], v["s"],
            (v["sh"], v["sw"]), tuple(draw(pad) for _ in range(4)), (v["dh"], v["dw"]), v["groups"],
            v["in_layout"], v["out_layout"], v["activation"], v["residual"], v["threads"],
        )  # fmt: skip
    except ArgumentError:
        assume(False)
        raise
