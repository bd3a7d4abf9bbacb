"""The part of a module's syntax that determines code: without docstrings, comments and annotations.

Left out are comments, formatting, bare strings (docstrings), annotations, and imports for annotations: blocks under
`TYPE_CHECKING` and the modules of `_FOR_ANNOTATIONS`. Outside of classes `x: int = 1` counts as `x = 1`.

Imports are stored apart from the tree, as moving a file changes their order. Imports from our own packages are listed
for `runtime.code.sources.stamp`, which hashes the imported content instead of its path; the others are part of the
digest. One of our modules that replaces a module of another package (`_STANDS_FOR`) counts as the latter.

A tree visitor of our own writes the tree, as the output of `ast.dump` and `ast.unparse` differs between Python
versions. This module needs only the standard library.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

OWN = ("autotune", "baselib", "cpuconv", "layouts")
_STANDS_FOR = {"baselib.data_classes": "dataclasses"}  # our replacements of other packages' modules
_FOR_ANNOTATIONS = ("__future__", "collections.abc", "types", "typing", "typing_extensions")
_LEFT_OUT = ("annotation", "returns", "type_comment", "type_params", "kind")  # node fields that are left out


class Import(NamedTuple):
    """A name that a module imports: `from module import name as bound`; `import module as bound` if `name` is empty."""

    module: str
    name: str
    bound: str


class Syntax(NamedTuple):
    """A module's syntax: a digest of all but the imports from our own packages, and those imports."""

    content: str
    imports: tuple[Import, ...]


def parse(source: bytes) -> Syntax:
    """Parse a module.

    Raises
    ------
    SyntaxError
        The source is invalid, or has a relative import, whose target depends on the file's path.
    """
    writer = _Writer()
    text = writer.written(ast.parse(source))
    own = {each for each in writer.imports if each.module.partition(".")[0] in OWN}
    others = sorted(writer.imports - own)
    content = hashlib.sha256("\n".join([text, *map(" ".join, others)]).encode())
    return Syntax(content.hexdigest()[:32], tuple(sorted(own)))


class _Writer:
    """Writes the relevant part of a tree: the class name of each node and its fields that are not empty.

    Attributes
    ----------
    imports : set of Import
        The imports found so far.
    """

    def __init__(self) -> None:
        self.imports: set[Import] = set()
        self._in_class = False

    def written(self, node: ast.AST) -> str:
        """Return the text of a node, without the special cases of its class."""
        fields = []
        for name in _fields(node._fields):
            inner = getattr(node, name, None)
            if type(inner) is list:
                if texts := self._listed(inner):
                    fields.append(f"{name}=[{','.join(texts)}]")
            elif inner is not None:
                fields.append(f"{name}={''.join(self._texts(inner))}")
        return f"{type(node).__name__}({','.join(fields)})"

    def _listed(self, values: list[Any]) -> list[str]:
        texts: list[str] = []
        for each in values:
            texts += self._texts(each)
        return texts

    def _texts(self, value: Any) -> Iterable[str]:
        """Return the texts of a value: none for a statement that is left out, several for one replaced by its parts."""
        if not isinstance(value, ast.AST):
            # In ASCII, as the set of printable characters changes with Unicode versions.
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
        if self._in_class:  # an annotation in a class makes a field
            return (self.written(node),)
        return (self.written(ast.Assign([node.target], node.value)),) if node.value else ()

    def _of_text_with_fields(self, node: ast.JoinedStr) -> Iterable[str]:
        """Join adjacent strings of an f-string, as Python splits them differently before and after 3.12."""
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
    """Return the relevant fields of a node, sorted by name."""
    return sorted({*names} - {*_LEFT_OUT})
