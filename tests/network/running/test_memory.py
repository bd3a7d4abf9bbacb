"""The arena: buffers that live at the same time never overlap, and what may share memory does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.conv.choice.target import Target
from cpuconv.isa import current
from cpuconv.network.running.arena import Memory, _lowest_gap, arrange, plan_memory
from cpuconv.network.selection.layout import lay_out
from support.graphs import made, parse

LIVES = st.tuples(st.integers(0, 20), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(st.tuples(st.integers(1, 5000), LIVES), max_size=30))
def test_buffers_that_live_together_lie_apart(buffers):
    sizes = {str(at): size for at, (size, _) in enumerate(buffers)}
    lives = {str(at): life for at, (_, life) in enumerate(buffers)}
    offsets, arena = arrange(sizes, lives)
    assert offsets.keys() == sizes.keys() and all(offset % 64 == 0 for offset in offsets.values())
    for a in sizes:
        assert offsets[a] + sizes[a] <= arena
        for b in sizes:
            together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
            if a != b and together:
                assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]


def test_buffers_of_equal_size_follow_one_another_in_the_same_place():
    offsets, arena = arrange({"a": 1000, "b": 1000, "c": 1000}, {"a": (0, 1), "b": (1, 2), "c": (2, 3)})
    assert offsets["a"] == offsets["c"] != offsets["b"]
    assert arena < 2 * 1100


def _memory(text: str) -> Memory:
    network_plan = lay_out(made(parse(text)), Target(current(), 1, "heuristic"))
    return plan_memory(network_plan)


def test_parts_of_a_concatenation_are_written_in_place():
    memory = _memory("""g (float[1,16,5,5] x) => (float[1,48,5,5] z) {
        a = Relu(x)  b = Sigmoid(x)  c = Tanh(x)
        y = Concat<axis = 1>(a, b, c)
        z = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(y)
    }""")
    starts = [memory.places[name].ref.offset - memory.places["y"].ref.offset for name in "abc"]
    assert starts == [0, 16 * 25 * 4, 32 * 25 * 4]


def test_a_value_that_is_read_twice_by_a_concatenation_is_copied_once():
    memory = _memory("""g (float[1,16,5,5] x) => (float[1,32,5,5] z) {
        a = Relu(x)
        y = Concat<axis = 1>(a, a)
        z = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(y)
    }""")
    span = range(memory.places["y"].ref.offset, memory.places["y"].ref.offset + memory.places["y"].size)
    read = memory.places.get("a@blocked", memory.places["a"])  # whichever the concatenation reads
    assert read.ref.offset not in span


CONVOLUTIONS = f"""g (float[1,16,5,5] x) => (float[1,16,5,5] z) <float[16,16,1,1] w = {{{", ".join("1" * 256)}}}> {{
    a = Conv(x, w)
    b = Sigmoid(a)
    c = Conv(b, w)
    z = %s
}}"""


def test_an_elementwise_result_takes_the_memory_of_an_operand():
    memory = _memory(CONVOLUTIONS % "Conv(c, w)")
    assert memory.places["a"].ref == memory.places["b"].ref


def test_an_operand_that_is_read_again_keeps_its_memory():
    memory = _memory(CONVOLUTIONS % "Add(a, c)")
    assert memory.places["a"].ref != memory.places["b"].ref


def test_outputs_lie_in_the_caller_s_arrays():
    memory = _memory("""g (float[1,16,5,5] x) => (float[1,16,5,5] y, float[1,400] z) {
        y = Relu(x)
        a = Sigmoid(x)
        z = Flatten(a)
    }""")
    assert memory.places["y"].ref.name == "output 0"
    assert memory.places["z"].ref.name == "output 1"
    assert memory.places["z"].strides == (1600, 4)
    assert np.prod(memory.places["z"].shape) == 400


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=12),
    st.integers(1, 9),
)
def test_the_lowest_gap_is_found(ranges, size):
    taken = [(start, start + length) for start, length in ranges]
    free = (at for at in range(60) if all(at + size <= start or end <= at for start, end in taken))
    assert _lowest_gap(size, taken) == next(free)
