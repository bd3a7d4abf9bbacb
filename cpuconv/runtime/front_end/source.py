"""Syntax trees of drivers and of the functions that they call."""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import inspect
import textwrap
from collections import Counter
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_CODE_FIELDS = ("co_code", "co_names", "co_varnames", "co_consts", "co_freevars")


class NotInSubsetError(Exception):
    """A function is outside the supported subset of Python; the message names the construct."""


class Source(NamedTuple):
    """A function's syntax.

    Attributes
    ----------
    body : list of ast.stmt
    stored : Counter of str
        Number of assignments per variable, without the binding of parameters.
    names : dict of str to object
        Values of its global and built-in names.
    signature : inspect.Signature
    """

    body: list[ast.stmt]
    stored: Counter[str]
    names: dict[str, Any]
    signature: inspect.Signature


@functools.lru_cache(maxsize=1024)
def read(function: FunctionType) -> Source:
    """Parse a function.

    Raises
    ------
    NotInSubsetError
        Its source is missing, or has changed since the import.
    """
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError) as error:
        raise NotInSubsetError(f"{function.__qualname__}: {error}") from error
    if not isinstance(tree, ast.FunctionDef) or not _is_source_of(function, tree):
        raise NotInSubsetError(f"{function.__qualname__}: its source is not what was imported")
    targets = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    added = [node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign)]  # a second store each
    stored = Counter(each.id for each in (*targets, *added) if isinstance(each, ast.Name))
    return Source(tree.body, stored, {**vars(builtins), **function.__globals__}, inspect.signature(function))


def _is_source_of(function: FunctionType, tree: ast.FunctionDef) -> bool:
    """Whether the function was compiled from this tree; never true for a closure."""
    tree.decorator_list.clear()
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    made = compile(ast.Module([tree], []), "", "exec", flags=flags, dont_inherit=True)
    codes = [each for each in made.co_consts if isinstance(each, CodeType)]
    return len(codes) == 1 and all(getattr(codes[0], name) == getattr(function.__code__, name) for name in _CODE_FIELDS)
