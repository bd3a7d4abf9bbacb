"""Iterations of a body: each receives the carried values of the previous one without copies; outputs are stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.graph.stopping import Stop, check
from cpuconv.memory.aligned import aligned
from cpuconv.memory.free_memory import check_bytes
from cpuconv.network.control.bodies import Ends, Step

_FIRST_ROWS = 16  # initial rows of a stack of unknown length


class Stack:
    """Arrays of one shape and dtype, stacked along a new first axis.

    Parameters
    ----------
    at : int
        Index of the scan output.
    rows : int or None
        Number of rows; None if unknown.
    backwards : bool
        Whether the last iteration gives the first row; requires a known number of rows.
    """

    def __init__(self, at: int, rows: int | None, backwards: bool = False) -> None:
        self._at, self._rows, self._backwards = at, rows, backwards
        self._memory: np.ndarray | None = None

    def place(self, turn: int) -> np.ndarray | None:
        """The memory of an iteration's row; None in the first iteration."""
        memory = self._memory
        if memory is None:
            return None
        if turn >= len(memory):
            self._memory = self._room(memory.shape[1:], memory.dtype, 2 * turn)
            self._memory[:turn] = memory
            memory = self._memory
        return memory[len(memory) - 1 - turn if self._backwards else turn, ...]

    def put(self, turn: int, row: np.ndarray, place: np.ndarray | None) -> None:
        """Store the row of an iteration, unless it is in place already.

        Raises
        ------
        SourceError
            Its shape differs from those of earlier rows.
        """
        if row is place:
            return
        if self._memory is None:
            self._memory = self._room(row.shape, row.dtype, _FIRST_ROWS if self._rows is None else self._rows)
        if row.shape != self._memory.shape[1:] or row.dtype != self._memory.dtype:
            raise SourceError(
                f"the scan output {self._at} must keep its shape {self._memory.shape[1:]}, not become {row.shape}"
            )
        made = self.place(turn)
        assert made is not None
        made[...] = row

    def result(self, turns: int) -> np.ndarray:
        """The rows of `turns` iterations, at least one."""
        assert self._memory is not None
        return self._memory[:turns]

    def _room(self, shape: tuple[int, ...], dtype: np.dtype, rows: int) -> np.ndarray:
        size = rows * int(np.prod(shape, dtype=np.float64)) * dtype.itemsize
        check_bytes(size, f"the scan output {self._at}")
        return aligned((rows, *shape), dtype)


class Turns:
    """A body that is run repeatedly.

    Memory that an iteration wrote is reused two iterations later, if no carried value is in it any more; it has no
    other readers.

    Parameters
    ----------
    step : Step
    ends : Ends
    inputs : list of numpy.ndarray
        Inputs of the body in order, at first those of the first iteration. The arrays are not written to.
    first : int
        Index of the first carried value in `inputs`.
    carried : int
        Number of carried values.
    before : int
        Number of outputs of the body before the carried ones; they become the inputs directly before `first`.
    stacks : sequence of Stack
    """

    def __init__(
        self,
        step: Step,
        ends: Ends,
        inputs: list[np.ndarray],
        first: int,
        carried: int,
        before: int,
        stacks: Sequence[Stack],
    ) -> None:
        self.inputs, self._step, self._stacks = inputs, step, stacks
        self._ends = ends
        states = before + carried
        self._targets = range(first - before, first + carried)  # the inputs that outputs replace
        rows = zip(self._targets, ends.computed[:states], ends.passed, ends.constants, strict=False)
        self._states = [row for row in rows if row[0] != row[2]]  # without values that stay the same input
        self._rows = list(
            zip(stacks, ends.computed[states:], ends.passed[states:], ends.constants[states:], strict=True)
        )
        stacked = {place for place in ends.computed[states:] if place >= 0}
        count = len(ends.graph.outputs)
        self._own = [place for place in dict.fromkeys(ends.computed[:states]) if place >= 0 and place not in stacked]
        self._direct = {place: stack for stack, place, _, _ in reversed(self._rows) if place >= 0}
        self._moves = any(at in self._targets for _, _, at, _ in self._states)
        self._spare: list[np.ndarray | None] = [None] * count  # memory that may be overwritten
        self._last: list[np.ndarray | None] = [None] * count  # memory of the last iteration

    def run(self, turn: int, stop: Stop | None) -> None:
        """Run one iteration; afterwards `inputs` has the carried values."""
        inputs, spare, last = self.inputs, self._spare, self._last
        if not spare:
            check(stop)
        for place, stack in self._direct.items():
            spare[place] = stack.place(turn)
        made = self._step.run(inputs, spare, stop) if spare else []
        if not turn:
            self._check_types(made)
        for stack, place, at, array in self._rows:
            row = made[place] if place >= 0 else inputs[at] if array is None else array
            stack.put(turn, row, spare[place] if place >= 0 and self._direct[place] is stack else None)
        if self._moves:
            given = [*inputs]
            for target, place, at, array in self._states:
                inputs[target] = made[place] if place >= 0 else given[at] if array is None else array
            held = {id(each) for each in inputs}
            for place in self._own:
                before = last[place]
                spare[place] = None if before is None or id(before) in held else before
                last[place] = made[place]
            return
        for target, place, at, array in self._states:
            inputs[target] = made[place] if place >= 0 else inputs[at] if array is None else array
        for place in self._own:
            spare[place], last[place] = last[place], made[place]

    def _check_types(self, made: Sequence[np.ndarray]) -> None:
        """Check that carried values keep their dtypes.

        Raises
        ------
        SourceError
            A carried value changes its dtype.
        """
        after = self._ends.outputs(made, self.inputs)
        for target, new in zip(self._targets, after, strict=False):
            old = self.inputs[target]
            if new.dtype != old.dtype:
                raise SourceError(f"a carried value of {old.dtype} must not become {new.dtype}")
