"""Networks with control flow: programs of new sizes, and those of bodies, are evaluated from templates."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.network import program_builder
from support import oracle
from support.graphs import normal, parse
from support.random_sizes import Judge
from support.sized_networks import SizedNetwork

BODY = """
    a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w)
    b = Relu(a)"""
TEXTS = {
    "loop": f"""g (float[1,3,H,W] x) => (float[1,8,P,Q] y) <bool go = {{1}}, int64 turns = {{3}}> {{{BODY}
        y = Loop <body = inner (int64 i, bool c, float[1,8,P,Q] q) => (bool d, float[1,8,P,Q] r) {{
            d = Identity(c)
            s = Conv <pads = [1,1,1,1]> (q, v)
            r = Tanh(s)
        }}> (turns, go, b)
    }}""",
    "if": f"""g (float[1,3,H,W] x) => (float[1,8,P,Q] y) <float zero = {{0}}> {{{BODY}
        m = ReduceMean <keepdims = 0> (x)
        above = Greater(m, zero)
        y = If <then_branch = one () => (float[1,8,P,Q] t) {{ t = Conv <pads = [1,1,1,1]> (b, v) }},
                else_branch = other () => (float[1,8,P,Q] u) {{ u = Sqrt(b) }}> (above)
    }}""",
    "scan": f"""g (float[1,3,H,W] x) => (float[1,8,Q] y, float[P,1,8,Q] z) {{{BODY}
        first = ReduceMean <axes = [2], keepdims = 0> (b)
        rows = Transpose <perm = [2, 0, 1, 3]> (b)
        y, z = Scan <num_scan_inputs = 1, body = inner (float[1,8,Q] s, float[1,8,Q] row)
            => (float[1,8,Q] t, float[1,8,Q] u) {{
            m = Add(s, row)
            t = Tanh(m)
            u = Identity(t)
        }}> (first, rows)
    }}""",
}


def _network(name: str) -> SizedNetwork:
    shapes = {"w": (8, 3, 3, 3)} | ({"v": (8, 8, 3, 3)} if name != "scan" else {})
    weights = {each: array / 8 for each, array in normal(np.random.default_rng(0), shapes).items()}
    return SizedNetwork(name, parse(TEXTS[name], **weights), {"x": (1, 3, (17, 60), (17, 60))})


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("threads", [1, oracle.THREADS])
def test_results_are_right_whatever_ran_before(name, threads):
    judge = Judge(_network(name), threads=threads)
    assert [judge.judge(number) for number in range(6)] == ["right"] * 6
    assert not judge.reordered(range(6))


@pytest.mark.parametrize("name", TEXTS)
def test_a_new_size_is_not_lowered(name, monkeypatch):
    judge = Judge(_network(name))
    feeds = [judge.feed(number) for number in range(2, 8)]
    for feed in feeds[:4]:  # both branches
        judge.model.run(feed)
    monkeypatch.setattr(program_builder, "build", lambda *_: pytest.fail("a network was lowered"))
    for feed in feeds[4:]:
        judge.model.run(feed)
