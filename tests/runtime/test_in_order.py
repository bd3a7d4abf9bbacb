"""Order for in-order cores: results stay the same, nothing gets slower, and object code has the order of the text."""

from __future__ import annotations

import re
import struct

from hypothesis import given
from hypothesis import strategies as st

from cpuconv.runtime.in_order import reordering
from cpuconv.runtime.in_order.pipeline import cycles, read
from cpuconv.runtime.in_order.scheduling import order_of

REGISTERS, OFFSETS, PLACES = 4, 6, 8  # few, so that instructions depend on each other
register = st.integers(0, REGISTERS - 1).map("x{}".format)
offset = st.integers(0, OFFSETS - 1).map(lambda place: f"#{8 * place}")
FORMS = {
    "add": "{r}, {r}, {r}",
    "madd": "{r}, {r}, {r}, {r}",
    "movk": "{r}, {n}",
    "cmp": "{r}, {r}",
    "csel": "{r}, {r}, {r}, lt",
    **dict.fromkeys(("ldr", "str"), "{r}, [{r}, {n}]"),
    **dict.fromkeys(("ldp", "stp"), "{r}, {r}, [{r}, {n}]"),
    **dict.fromkeys(("ldr ", "str "), "{r}, [{r}], #8"),
    "prfm": "pldl1keep, [{r}]",
}


@st.composite
def instructions(draw):
    name = draw(st.sampled_from(list(FORMS)))
    form = re.sub(r"\{(.)\}", lambda found: draw({"r": register, "n": offset}[found[1]]), FORMS[name])
    return f"{name.strip()} {form}"


def run(lines):
    """Registers, memory and flag after the instructions; addresses are taken modulo the places of memory."""
    x, memory, less = [8, 0, 24, 16], list(range(PLACES)), False
    for line in lines:
        name, after = line.split()[0], "], " in line
        numbers = [int(number) for number in re.findall(r"[x#](\d+)", line)]
        first, *others = numbers
        if name == "add":
            x[first] = x[others[0]] + x[others[1]]
        elif name == "madd":
            x[first] = x[others[0]] * x[others[1]] + x[others[2]]
        elif name == "movk":
            x[first] = x[first] // 2 + others[0]
        elif name == "cmp":
            less = x[first] < x[others[0]]
        elif name == "csel":
            x[first] = x[others[0 if less else 1]]
        elif name != "prfm":
            *moved, base, by = numbers
            start = (x[base] + (0 if after else by)) // 8
            for i, value in enumerate([memory[(start + i) % PLACES] for i in range(len(moved))]):
                if name.startswith("st"):
                    memory[(start + i) % PLACES] = x[moved[i]]
                else:
                    x[moved[i]] = value
            x[base] += by * after
        x = [value % (1 << 16) for value in x]
    return x, memory, less


def test_stack_changes_and_literal_loads_stay_in_place():
    fixed = "add sp, sp, #64", "mov sp, x29", "ldp x29, x30, [sp], #16", "ldr q0, .LCPI0_0"
    assert [read(line).fixed for line in (*fixed, "ldr q0, [sp, #16]")] == [True] * len(fixed) + [False]


@given(st.lists(instructions(), max_size=24), st.booleans())
def test_results_stay_the_same(lines, loops):
    body = [read(line) for line in lines]
    order = order_of(body, loops)
    assert sorted(order) == list(range(len(lines)))
    assert run([lines[i] for i in order]) == run(lines)
    assert cycles([body[i] for i in order], 6) <= cycles(body, 6)


TEXT = """
	.text
	.p2align 2
f:
	ldr d0, [x0]
	fmla v1.4s, v0.4s, v2.s[0]
	fmla v3.4s, v4.4s, v2.s[0]
	adrp x9, .LCPI0_0
	ldr q5, [x9, :lo12:.LCPI0_0]
	.p2align 4, , 12
.LBB0_1:
	ldr d6, [x1]
	//APP
	//NO_APP
	fmla v7.4s, v6.4s, v2.s[0]
	fmla v8.4s, v4.4s, v2.s[1]
	subs x2, x2, #1
	b.ne .LBB0_1
	ret
.Lfunc_end0:
	.section .note
"""


def test_code_has_the_order_of_the_text(monkeypatch):
    text, order = reordering.reordered(TEXT)
    assert order != sorted(order)
    assert [order.index(i) for i in (3, 4, 9, 10)] == [3, 4, 9, 10]  # relocations and branches
    padding = 3  # the loop starts after five instructions, at the next multiple of 16 bytes
    first_registers = [0, 1, 3, 9, 5, 6, 7, 8, 2, 0, 30]  # what the lowest bits of words number
    numbers = [32 * i + register for i, register in enumerate(first_registers)]
    words = [*numbers[:5], *[99] * padding, *numbers[5:]]
    code = b"head" + struct.pack(f"<{len(words)}I", *words) + b"tail"
    monkeypatch.setattr(reordering, "place_of_code", lambda code: (4, len(code) - 8))
    found = reordering.reordered_code(code, TEXT)
    assert (found[:4], found[-4:]) == (b"head", b"tail")
    there = list(struct.unpack(f"<{len(words)}I", found[4:-4]))
    assert there == [*(numbers[i] for i in order[:5]), *[99] * padding, *(numbers[i] for i in order[5:])]
    assert reordering.reordered_code(code[:-4], TEXT) == code[:-4]  # not the size of the text
    other = code.replace(struct.pack("<I", numbers[1]), struct.pack("<I", numbers[1] + 1))
    assert reordering.reordered_code(other, TEXT) == other  # not the registers of the text
