"""Compile a trace of sizes to a Python function that computes its results for other sizes.

Interpreting the trace takes about ten times as long: each step is a call, and most results are not needed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_DEPTH = 12  # nested expressions; Python's parser allows about a hundred
_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=",
}  # fmt: skip

Function = Callable[[Sequence[int]], "list[Any] | None"]


def emitted(
    count: int, steps: Sequence[Any], answers: Mapping[int, bool], results: Sequence[Any], is_size: Callable[..., bool]
) -> Function:
    """Compile a function of a trace's sizes: it returns `results`, or None if a comparison has another answer.

    Parameters
    ----------
    count : int
        Number of sizes.
    steps : sequence of (function or None, operands)
        The computations, as a trace stores them.
    answers : mapping of int to bool
        Answers of the steps that are comparisons, by place.
    results : sequence of object
        Sizes, each with its `place`, and constants.
    is_size : callable
        Whether a result is a size.
    """
    return _Emitter(count, steps, answers, results, is_size).function()


class _Emitter:
    def __init__(
        self,
        count: int,
        steps: Sequence[Any],
        answers: Mapping[int, bool],
        results: Sequence[Any],
        is_size: Callable[..., bool],
    ) -> None:
        self._count, self._steps, self._answers = count, steps, answers
        self._results, self._is_size = results, is_size
        self._namespace: dict[str, Any] = {}
        self._texts: dict[int, tuple[str, int]] = {at: (f"v{at}", 0) for at in range(count)}  # expression and depth
        self._uses = self._counted()

    def _counted(self) -> dict[int, int]:
        """Number of readers of each step that is needed."""
        uses: dict[int, int] = {}
        for result in self._results:
            if self._is_size(result):
                uses[result.place] = uses.get(result.place, 0) + 1
        for place in reversed(range(self._count, self._count + len(self._steps))):
            function, operands = self._steps[place - self._count]
            if function is not None and (place in self._answers or place in uses):
                for operand in operands:
                    uses[operand] = uses.get(operand, 0) + 1
        return uses

    def function(self) -> Function:
        lines = [f"def function(sizes):\n {''.join(f'v{at},' for at in range(self._count)) or '()'} = sizes"]
        for place, (function, operands) in enumerate(self._steps, self._count):
            if function is None:
                self._texts[place] = self._constant(operands[0]), 0
                continue
            if place not in self._answers and place not in self._uses:
                continue
            texts = [self._texts[operand] for operand in operands]
            text, depth = self._called(function, [text for text, _ in texts]), 1 + max(depth for _, depth in texts)
            if place in self._answers:
                lines.append(f" if {'not ' if self._answers[place] else ''}{text}: return None")
            if place not in self._uses:
                continue
            if self._uses[place] == 1 and depth < MAX_DEPTH:
                self._texts[place] = text, depth
            else:
                self._texts[place] = f"v{place}", 0
                lines.append(f" v{place} = {text}")
        listed = [self._texts[each.place][0] if self._is_size(each) else self._named(each) for each in self._results]
        lines.append(f" return [{', '.join(listed)}]")
        exec(compile("\n".join(lines), "<sizes>", "exec"), self._namespace)
        made = self._namespace["function"]

        def checked(sizes: Sequence[int]) -> list[Any] | None:
            try:
                return made(sizes)
            except ArithmeticError:
                return None

        return checked

    def _called(self, function: Any, texts: Sequence[str]) -> str:
        infix = _INFIX.get(function)
        if infix:
            return f"({texts[0]} {infix} {texts[1]})"
        if function is operator.getitem:
            return f"{texts[0]}[{texts[1]}]"
        return f"{self._named(function)}({', '.join(texts)})"

    def _constant(self, value: Any) -> str:
        return f"({value!r})" if type(value) is int else self._named(value)

    def _named(self, value: Any) -> str:
        name = f"k{len(self._namespace)}"
        self._namespace[name] = value
        return name
