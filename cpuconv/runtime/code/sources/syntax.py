"""The part of a module that decides its code: the syntax tree without docstrings, comments and annotations.

Left out are comments, formatting, texts that stand alone (docstrings), annotations, and what is imported for them:
blocks under `TYPE_CHECKING` and the modules of `_FOR_ANNOTATIONS`. Outside of classes `x: int = 1` counts as `x = 1`.

Imports lie apart from the tree, as a file that is moved changes their order. Those of our own packages are listed for
`runtime.stamp`, which hashes what they import and not where that lies; the others are part of the digest. So is a
module of ours that makes the same as one of another package: it counts as that.

The tree is written out by a walk of our own: `ast.dump` and `ast.unparse` say other things in other versions of Python,
of which this module needs nothing but the standard library.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
from typing import NamedTuple

OWN = ("autotune", "cpuconv", "layouts")
_STANDS_FOR = {"autotune.data_classes": "dataclasses"}  # modules of ours that make what one of another package makes
_FOR_ANNOTATIONS = ("__future__", "collections.abc", "types", "typing", "typing_extensions")
_LEFT_OUT = ("annotation", "returns", "type_comment", "type_params", "kind")  # fields of nodes


class Import(NamedTuple):
    """A name that a module imports: `from module import name as bound`; without a name `import module as bound`."""

    module: str
    name: str
    bound: str


class Syntax(NamedTuple):
    """A module's content, as a digest of all but its imports from our own packages, and those imports."""

    content: str
    imports: tuple[Import, ...]


def parse(source: bytes) -> Syntax:
    """The syntax of a module.

    Raises
    ------
    SyntaxError
        The source is no Python, or it imports by a relative path: what that leads to depends on where the file lies.
    """
    essence = _Essence()
    tree = essence.visit(ast.parse(source))
    own = {each for each in essence.imports if each.module.partition(".")[0] in OWN}
    others = sorted(essence.imports - own)
    content = hashlib.sha256("\n".join([_written(tree), *map(" ".join, others)]).encode())
    return Syntax(content.hexdigest()[:32], tuple(sorted(own)))


class _Essence(ast.NodeTransformer):
    """Takes out of a tree what does not count, and its imports."""

    def __init__(self) -> None:
        self.imports: set[Import] = set()
        self._in_class = False

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            self._note(Import(each.name, "", each.asname or each.name.partition(".")[0]))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            raise SyntaxError(f"an import must be absolute, not 'from {'.' * node.level}{node.module or ''} import …'")
        for each in node.names:
            self._note(Import(node.module, each.name, each.asname or each.name))

    def _note(self, found: Import) -> None:
        if found.module not in _FOR_ANNOTATIONS:
            self.imports.add(found._replace(module=_STANDS_FOR.get(found.module, found.module)))

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        if getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING":
            rest = ast.Module(node.orelse, [])
            self.generic_visit(rest)
            return rest.body
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node, True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._inside(node, False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._inside(node, False)

    def _inside(self, node: ast.AST, in_class: bool) -> ast.AST:
        outside, self._in_class = self._in_class, in_class
        self.generic_visit(node)
        self._in_class = outside
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if self._in_class:  # there it makes a field
            return self.generic_visit(node)
        return self.generic_visit(ast.Assign([node.target], node.value)) if node.value else None

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Texts between the fields whole, as Python before and after 3.12 cuts them differently."""
        self.generic_visit(node)
        values: list[ast.expr] = []
        for is_text, parts in itertools.groupby(node.values, lambda each: isinstance(each, ast.Constant)):
            if not is_text:
                values += parts
            elif text := "".join(str(each.value) for each in parts if isinstance(each, ast.Constant)):
                values.append(ast.Constant(text))
        node.values = values
        return node


def _written(value: object) -> str:
    """A tree as text: the name of each node's class and its fields that hold something."""
    if isinstance(value, ast.AST):
        told = []
        for name in _fields(*value._fields):
            inner = getattr(value, name, None)
            if inner is not None and inner != []:
                told.append(f"{name}={_written(inner)}")
        return f"{type(value).__name__}({','.join(told)})"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return f"{type(value).__name__}:{value!a}"  # in ASCII: which characters are printable changes with Unicode


@functools.cache
def _fields(*names: str) -> list[str]:
    """Of the fields of a node those that count, in the order of their names."""
    return sorted({*names} - {*_LEFT_OUT})
