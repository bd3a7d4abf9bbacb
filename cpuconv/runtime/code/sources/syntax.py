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
from collections.abc import Iterable
from typing import Any, NamedTuple

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
    writer = _Writer()
    text = writer.written(ast.parse(source))
    own = {each for each in writer.imports if each.module.partition(".")[0] in OWN}
    others = sorted(writer.imports - own)
    content = hashlib.sha256("\n".join([text, *map(" ".join, others)]).encode())
    return Syntax(content.hexdigest()[:32], tuple(sorted(own)))


class _Writer:
    """Writes what counts of a tree: the name of each node's class and its fields that hold something.

    Attributes
    ----------
    imports : set of Import
        Those met so far.
    """

    def __init__(self) -> None:
        self.imports: set[Import] = set()
        self._in_class = False

    def written(self, node: ast.AST) -> str:
        """The text of a node that its class alone does not make something else."""
        told = []
        for name in _fields(node._fields):
            inner = getattr(node, name, None)
            if type(inner) is list:
                if texts := self._listed(inner):
                    told.append(f"{name}=[{','.join(texts)}]")
            elif inner is not None:
                told.append(f"{name}={''.join(self._texts(inner))}")
        return f"{type(node).__name__}({','.join(told)})"

    def _listed(self, values: list[Any]) -> list[str]:
        texts: list[str] = []
        for each in values:
            texts += self._texts(each)
        return texts

    def _texts(self, value: Any) -> Iterable[str]:
        """The text of a value; of a statement that does not count none, and of one that stands for others theirs."""
        if not isinstance(value, ast.AST):
            # In ASCII: which characters are printable changes with versions of Unicode.
            return (f"{type(value).__name__}:{value!a}",)
        special = _SPECIAL.get(type(value))
        return (self.written(value),) if special is None else special(self, value)

    def _of_import(self, node: ast.Import) -> Iterable[str]:
        for each in node.names:
            self._note(Import(each.name, "", each.asname or each.name.partition(".")[0]))
        return ()

    def _of_import_from(self, node: ast.ImportFrom) -> Iterable[str]:
        if node.level or node.module is None:
            raise SyntaxError(f"an import must be absolute, not 'from {'.' * node.level}{node.module or ''} import …'")
        for each in node.names:
            self._note(Import(node.module, each.name, each.asname or each.name))
        return ()

    def _note(self, found: Import) -> None:
        if found.module not in _FOR_ANNOTATIONS:
            self.imports.add(found._replace(module=_STANDS_FOR.get(found.module, found.module)))

    def _of_expression(self, node: ast.Expr) -> Iterable[str]:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return () if is_text else (self.written(node),)

    def _of_if(self, node: ast.If) -> Iterable[str]:
        if getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING":
            return self._listed(node.orelse)
        return (self.written(node),)

    def _of_class_or_function(self, node: ast.AST) -> Iterable[str]:
        outside, self._in_class = self._in_class, isinstance(node, ast.ClassDef)
        text = self.written(node)
        self._in_class = outside
        return (text,)

    def _of_annotated(self, node: ast.AnnAssign) -> Iterable[str]:
        if self._in_class:  # there it makes a field
            return (self.written(node),)
        return (self.written(ast.Assign([node.target], node.value)),) if node.value else ()

    def _of_text_with_fields(self, node: ast.JoinedStr) -> Iterable[str]:
        """Texts between the fields whole, as Python before and after 3.12 cuts them differently."""
        values: list[ast.expr] = []
        for is_text, parts in itertools.groupby(node.values, lambda each: isinstance(each, ast.Constant)):
            if not is_text:
                values += parts
            elif text := "".join(str(each.value) for each in parts if isinstance(each, ast.Constant)):
                values.append(ast.Constant(text))
        return (self.written(ast.JoinedStr(values)),)


_SPECIAL: dict[type[ast.AST], Any] = {
    ast.Import: _Writer._of_import,
    ast.ImportFrom: _Writer._of_import_from,
    ast.Expr: _Writer._of_expression,
    ast.If: _Writer._of_if,
    **dict.fromkeys((ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef), _Writer._of_class_or_function),
    ast.AnnAssign: _Writer._of_annotated,
    ast.JoinedStr: _Writer._of_text_with_fields,
}


@functools.cache
def _fields(names: tuple[str, ...]) -> list[str]:
    """Of the fields of a node those that count, in the order of their names."""
    return sorted({*names} - {*_LEFT_OUT})
