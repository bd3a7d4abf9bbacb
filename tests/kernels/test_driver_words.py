"""Argument words of drivers are declared once, by `@kernel`: a driver reads those that it declares, and no others.

That a step gives each of them a value is checked when it is bound (`kernels/binding/bound_step.py`).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from types import FunctionType

import pytest

import cpuconv.kernels
from cpuconv.runtime.driver_functions import Inlined, Specialised, specialise_on_tile
from cpuconv.runtime.kernel import Kernel

BLOCK = "args"  # the parameter of a driver that has its words
UNREAD = {"lanewise": {"stride_w"}}  # stays: stored results identify kernels by all words


def kernels() -> dict[str, list[Kernel]]:
    """The drivers of each module."""
    found: defaultdict[str, list[Kernel]] = defaultdict(list)
    for module in pkgutil.walk_packages(cpuconv.kernels.__path__, "cpuconv.kernels."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Kernel) and value.module == module.name:
                found[module.name].append(value)
    return found


def tree_of(function: FunctionType) -> ast.FunctionDef:
    """The syntax of a function, its decorators included."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    return tree


def parameters(function: FunctionType) -> list[str]:
    """The names of a function's parameters."""
    return list(inspect.signature(function).parameters)


def words_read(function: FunctionType, block: str, seen: set[tuple[FunctionType, str]]) -> set[str]:
    """The words that a function and those that it calls read of the block that is its parameter `block`."""
    if (function, block) in seen:
        return set()
    seen.add((function, block))
    read: set[str] = set()
    for node in ast.walk(tree_of(function)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == block:
            read.add(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = list(implementations(function.__globals__.get(node.func.id)))
            places = [at for at, given in enumerate(node.args) if isinstance(given, ast.Name) and given.id == block]
            read |= {word for each in called for at in places for word in words_read(each, parameters(each)[at], seen)}
    return read


def implementations(called: object) -> Iterator[FunctionType]:
    """The functions that a call in a driver may run; where the tile selects one, all."""
    if isinstance(called, Specialised):
        (decorator,) = tree_of(called.py_func).decorator_list
        yield from choices(decorator, called.py_func)
    elif isinstance(called, Inlined):
        yield called.py_func
    elif isinstance(called, FunctionType):
        yield called


def choices(tree: ast.AST, function: FunctionType) -> Iterator[FunctionType]:
    """The functions with the parameters of `function` that an expression, or what it calls, names."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {specialise_on_tile.__name__}
    for value in (function.__globals__.get(name) for name in names):
        for each in value.values() if isinstance(value, dict) else (value,):
            for found in implementations(each):
                if len(parameters(found)) == len(parameters(function)):
                    yield found
                elif parameters(found) == ["tile"]:
                    yield from choices(tree_of(found), function)


@pytest.mark.parametrize("module, of_module", kernels().items(), ids=lambda value: value if type(value) is str else "")
def test_drivers_read_the_words_that_they_declare(module, of_module):
    declared = {word for kernel in of_module for word in kernel.fields}
    for kernel in of_module:
        read = words_read(kernel._function, BLOCK, set())
        unread = UNREAD.get(kernel._function.__name__, set())
        assert set(kernel.fields) - read == unread, f"{kernel.name} declares more than it reads"
        assert read <= declared, f"{kernel.name} reads more than the module's drivers declare"
        assert len(set(kernel.fields)) == len(kernel.fields)
