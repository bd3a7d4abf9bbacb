"""Writer of a function's IR, including its calls, from syntax trees."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from cpuconv.runtime.driver_functions import Emitted, Inlined, Specialised
from cpuconv.runtime.front_end import source, values
from cpuconv.runtime.front_end.source import NotInSubsetError
from cpuconv.runtime.front_end.values import BIT, I64, Block, is_computed


def write_body(function: Callable[..., None], builder: Any, *arguments: Any) -> None:
    """Write the IR of a function without a result, at the builder's position.

    Parameters
    ----------
    arguments : tile, int64 (llvmlite.ir.Value), Block, or int

    Raises
    ------
    NotInSubsetError
    """
    assert isinstance(function, FunctionType)
    _Call(builder, function, arguments, {}).run()


class _Loop(NamedTuple):
    """The target blocks of `continue` and `break`."""

    next: Any
    done: Any


class _Call:
    """One call of a function: its variables, and the target block of `return`.

    Variables are stack slots, which LLVM promotes to registers. A name that is assigned once, a constant, is that
    constant.
    """

    def __init__(self, builder: Any, function: FunctionType, given: Sequence[Any], named: dict[str, Any]) -> None:
        self._builder, self._function = builder, function
        self._source = source.read(function)
        self._variables: dict[str, Any] = {}  # addresses
        self._constants: dict[str, Any] = {}
        self._loops: list[_Loop] = []
        self._exit: Any = None
        self._results: Any = None  # stack slots for the result, where there are several `return`
        bound = self._source.signature.bind(*given, **named)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if name in self._source.stored:
                self._store(name, value)
            else:
                self._constants[name] = value

    def run(self) -> Any:
        """Write the body; return the function's result, 0 if it has none."""
        *before, last = self._source.body
        if isinstance(last, ast.Return) and not _returns(before):
            self._run(before)
            return 0 if last.value is None else self._value(last.value)
        if not _returns(self._source.body):
            self._run(self._source.body)
            return 0
        self._exit = self._builder.append_basic_block("exit")
        self._run(self._source.body)
        self._go(self._exit)
        self._builder.position_at_end(self._exit)
        return values.mapped(self._builder.load, self._results)

    def _refuse(self, node: ast.AST) -> Any:
        name = f"{self._function.__module__}.{self._function.__qualname__}"
        raise NotInSubsetError(f"{name}: {ast.unparse(node)}")

    # --- statements -------------------------------------------------------------------------------------------------

    def _run(self, body: Sequence[ast.stmt]) -> None:
        for each in body:
            if self._builder.block.is_terminated:  # by a previous statement, such as `return`
                return
            getattr(self, f"_run_{type(each).__name__.lower()}", self._refuse)(each)

    def _run_pass(self, node: ast.Pass) -> None:
        pass

    def _run_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # skip docstrings
            self._value(node.value)

    def _run_assign(self, node: ast.Assign) -> None:
        value = self._value(node.value)
        for each in node.targets:
            self._assign(each, value)

    def _run_augassign(self, node: ast.AugAssign) -> Any:
        if not isinstance(node.target, ast.Name):
            return self._refuse(node)
        value = values.computed(self._builder, node.op, self._named(node.target.id, node), self._value(node.value))
        return self._store(node.target.id, self._refuse(node) if value is None else value)

    def _run_if(self, node: ast.If) -> None:
        test = self._test(node.test)
        if isinstance(test, bool):
            self._run(node.body if test else node.orelse)
            return
        then, other, after = map(self._builder.append_basic_block, ("then", "else", "after"))
        self._builder.cbranch(test, then, other)
        for block, body in ((then, node.body), (other, node.orelse)):
            self._builder.position_at_end(block)
            self._run(body)
            self._go(after)
        self._builder.position_at_end(after)

    def _run_while(self, node: ast.While) -> None:
        if node.orelse:
            self._refuse(node)
        again, body, done = map(self._builder.append_basic_block, ("while", "body", "done"))
        self._builder.branch(again)
        self._builder.position_at_end(again)
        test = self._test(node.test)
        self._builder.cbranch(BIT(test) if isinstance(test, bool) else test, body, done)
        self._builder.position_at_end(body)
        self._repeat(node.body, _Loop(again, done))
        self._builder.position_at_end(done)

    def _run_for(self, node: ast.For) -> None:
        call = node.iter
        is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        if node.orelse or not is_range or not isinstance(node.target, ast.Name):
            self._refuse(node)
        assert isinstance(call, ast.Call) and isinstance(node.target, ast.Name)
        builder, counter = self._builder, self._memory()
        limits = [values.word(builder, self._value(each)) for each in call.args]
        start, stop, step = (I64(0), *limits, I64(1)) if len(limits) == 1 else (*limits, I64(1))[:3]
        builder.store(start, counter)
        again, body, next_, done = map(builder.append_basic_block, ("for", "body", "next", "done"))
        builder.branch(again)
        builder.position_at_end(again)
        at = builder.load(counter)
        up, down = (builder.icmp_signed(sign, at, stop) for sign in "<>")
        builder.cbranch(builder.select(builder.icmp_signed(">", step, I64(0)), up, down), body, done)
        builder.position_at_end(body)
        self._store(node.target.id, at)
        self._repeat(node.body, _Loop(next_, done))
        builder.position_at_end(next_)
        builder.store(builder.add(at, step, flags=["nsw"]), counter)
        builder.branch(again)
        builder.position_at_end(done)

    def _repeat(self, body: list[ast.stmt], loop: _Loop) -> None:
        self._loops.append(loop)
        self._run(body)
        self._loops.pop()
        self._go(loop.next)

    def _run_continue(self, node: ast.Continue) -> None:
        self._builder.branch(self._loops[-1].next)

    def _run_break(self, node: ast.Break) -> None:
        self._builder.branch(self._loops[-1].done)

    def _run_return(self, node: ast.Return) -> None:
        value = 0 if node.value is None else self._value(node.value)
        if self._results is None:
            self._results = values.mapped(lambda _: self._memory(), value)
        self._fill(self._results, value)
        self._builder.branch(self._exit)

    def _go(self, block: Any) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(block)

    # --- variables --------------------------------------------------------------------------------------------------

    def _memory(self) -> Any:
        with self._builder.goto_entry_block():
            return self._builder.alloca(I64)

    def _fill(self, memory: Any, value: Any) -> None:
        for place, each in zip(values.elements(memory), values.elements(value), strict=True):
            self._builder.store(self._word(each), place)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._store(target.id, value)
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(target.elts) == len(value):
            for each, own in zip(target.elts, value, strict=True):
                self._assign(each, own)
        else:
            self._refuse(target)

    def _store(self, name: str, value: Any) -> None:
        once = self._source.stored[name] == 1 and name not in self._source.signature.parameters
        if once and not any(map(is_computed, values.elements(value))):
            self._constants[name] = value
            return
        if name not in self._variables:
            self._variables[name] = values.mapped(lambda _: self._memory(), value)
        self._fill(self._variables[name], value)

    def _named(self, name: str, node: ast.AST) -> Any:
        if name in self._variables:
            return values.mapped(self._builder.load, self._variables[name])
        names = self._constants if name in self._constants else self._source.names
        return names[name] if name in names else self._refuse(node)

    # --- expressions ------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        return getattr(self, f"_value_{type(node).__name__.lower()}", self._refuse)(node)

    def _word(self, value: Any) -> Any:
        return values.word(self._builder, value)

    def _test(self, node: ast.expr) -> Any:
        """Return a condition as a bool or a bit."""
        if isinstance(node, ast.BoolOp):
            return self._told(node, self._test)
        return values.test(self._builder, self._value(node))

    def _value_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _value_name(self, node: ast.Name) -> Any:
        return self._named(node.id, node)

    def _value_attribute(self, node: ast.Attribute) -> Any:
        owner = self._value(node.value)
        if isinstance(owner, Block) and node.attr in owner.places:
            return owner.load(self._builder, node.attr)
        return self._refuse(node) if is_computed(owner) else getattr(owner, node.attr)

    def _value_tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(map(self._value, node.elts))

    def _value_subscript(self, node: ast.Subscript) -> Any:
        owner, index = self._value(node.value), self._value(node.slice)
        return self._refuse(node) if is_computed(owner) or is_computed(index) else owner[index]

    def _value_binop(self, node: ast.BinOp) -> Any:
        value = values.computed(self._builder, node.op, self._value(node.left), self._value(node.right))
        return self._refuse(node) if value is None else value

    def _value_unaryop(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            test = self._test(node.operand)
            return not test if isinstance(test, bool) else self._builder.not_(test)
        if isinstance(node.op, ast.USub):
            return values.negated(self._builder, self._value(node.operand))
        return self._refuse(node)

    def _value_compare(self, node: ast.Compare) -> Any:
        result: Any = True
        left = self._value(node.left)
        for kind, each in zip(node.ops, node.comparators, strict=True):
            right = self._value(each)
            holds = values.compared(self._builder, kind, left, right)
            result = values.both(self._builder, result, self._refuse(node) if holds is None else holds)
            left = right
        return result

    def _value_boolop(self, node: ast.BoolOp) -> Any:
        return self._told(node, self._truth)

    def _truth(self, node: ast.expr) -> Any:
        """Return a bool or a bit; refuse other operands, as `and` and `or` would return the operand itself."""
        value = self._value(node)
        is_truth = value.type == BIT if is_computed(value) else isinstance(value, bool)
        return value if is_truth else self._refuse(node)

    def _told(self, node: ast.BoolOp, test_of: Callable[[ast.expr], Any]) -> Any:
        """Return whether all, or any, operands are true, with short-circuit evaluation."""
        builder, tells = self._builder, isinstance(node.op, ast.Or)
        done: Any = None
        ends = []
        for each in node.values:
            test = test_of(each)
            if not isinstance(test, bool):
                done = done or builder.append_basic_block("decided")
                further = builder.append_basic_block("further")
                ends.append((BIT(tells), builder.block))
                builder.cbranch(test, *((done, further) if tells else (further, done)))
                builder.position_at_end(further)
            elif test == tells:
                break
        else:
            test = not tells
        if done is None:
            return test
        ends.append((BIT(test), builder.block))
        builder.branch(done)
        builder.position_at_end(done)
        return values.merged(builder, ends)

    def _value_ifexp(self, node: ast.IfExp) -> Any:
        builder, test = self._builder, self._test(node.test)
        if isinstance(test, bool):
            return self._value(node.body if test else node.orelse)
        then, other, after = map(builder.append_basic_block, ("then", "else", "after"))
        builder.cbranch(test, then, other)
        ends = []
        for block, each in ((then, node.body), (other, node.orelse)):
            builder.position_at_end(block)
            ends.append((values.mapped(self._word, self._value(each)), builder.block))
            builder.branch(after)
        builder.position_at_end(after)
        return values.merged(builder, ends)

    def _value_call(self, node: ast.Call) -> Any:
        builder, called = self._builder, self._value(node.func)
        given = [self._value(each) for each in node.args]
        named = {str(each.arg): self._value(each.value) for each in node.keywords}
        if called in (min, max) and not named:
            return functools.reduce(functools.partial(values.extreme, builder, called), given)
        if isinstance(called, Emitted):
            given = called.in_order(given, named)
            tile = given[: int(called.takes_tile)]
            return called.emit(builder, *tile, *map(self._word, given[len(tile) :]))
        if isinstance(called, Specialised):
            called = called.choice(given[0])
        if isinstance(called, Inlined):
            called = called.py_func
        if isinstance(called, FunctionType):
            return _Call(builder, called, given, named).run()
        return self._refuse(node)


def _returns(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Return) for each in body for node in ast.walk(each))
