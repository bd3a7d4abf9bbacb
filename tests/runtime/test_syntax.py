"""What of a source file counts for the stamps of what is made from it."""

from __future__ import annotations

import pytest

from cpuconv.runtime.code.sources.syntax import Import, Syntax, parse

SOURCE = '''"""A module."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cpuconv.isa import Isa
from cpuconv.runtime.kernel import inline, kernel as driver

SIZE = 4  # lanes
"""What a vector holds."""


class Tile(tuple):
    """A tile."""

    rows: int
    cols: int = 1


@driver("x y")
def run(tile: Tile, x: int, *, y: float = 0.5) -> None:
    """Run it."""
    total: float = 0.0
    for row in range(tile.rows):
        total += x * math.sqrt(row) + y
        total -= np.float32(SIZE)
    return f"{total:.{SIZE}f} of {x}" "s"
'''

SAME = {
    "a comment": ("# lanes", "# of a vector, in floats"),
    "a comment more": ("    total: float", "    # the sum\n    total: float"),
    "a module's docstring": ("A module.", "Another module."),
    "a class's docstring": ('    """A tile."""\n\n', ""),
    "a function's docstring": ("Run it.", "Run it: it is\n    run."),
    "a constant's docstring": ('"""What a vector holds."""\n', ""),
    "an argument's annotation": ("x: int", "x"),
    "a result's annotation": (" -> None", " -> str | None"),
    "a field's annotation": ("rows: int", "rows: Rows"),
    "a variable's annotation": ("total: float = 0.0", "total = 0.0"),
    "a name without a value": ("SIZE = 4", "SIZE: int\nSIZE = 4"),
    "blank lines": ("\n\nclass Tile", "\nclass Tile"),
    "a line broken": ("x * math.sqrt(row) + y", "(\n            x * math.sqrt(row)\n            + y\n        )"),
    "quotes": ('@driver("x y")', "@driver('x y')"),
    "a text in parts": ('of {x}" "s"', 'of {x}s"'),
    "the order of imports": (
        "import math\nfrom collections.abc import Callable\n\nimport numpy as np\n",
        "import numpy as np\nimport math\n",
    ),
    "what annotations import": ("import Callable", "import Callable, Mapping"),
    "what only type checkers read": ("\nSIZE", "\nif TYPE_CHECKING:\n    from cpuconv.isa import Lanes\n\nSIZE"),
}
OTHER = {
    "a constant": ("SIZE = 4", "SIZE = 8"),
    "its kind": ("SIZE = 4", "SIZE = 4.0"),
    "an operator": ("math.sqrt(row) + y", "math.sqrt(row) - y"),
    "precedence": ("x * math.sqrt(row) + y", "x * (math.sqrt(row) + y)"),
    "a default": ("y: float = 0.5", "y: float = 0.25"),
    "a field's default": ("cols: int = 1", "cols: int = 2"),
    "a field": ("rows: int", "lines: int"),
    "a field that is none": ("cols: int = 1", "cols = 1"),
    "a decorator": ('@driver("x y")\n', ""),
    "its argument": ('"x y"', '"y x"'),
    "the order of statements": (
        "        total += x * math.sqrt(row) + y\n        total -= np.float32(SIZE)\n",
        "        total -= np.float32(SIZE)\n        total += x * math.sqrt(row) + y\n",
    ),
    "an indentation": ("        total -= np", "    total -= np"),
    "a format": (":.{SIZE}f", ":.{SIZE}e"),
    "a name": ("x * math", "y * math"),
    "another package's name": ("import numpy as np", "import cupy as np"),
    "a name of our own": ("import inline, kernel as driver", "import inline, helper as driver"),
    "where it is from": ("from cpuconv.isa import", "from cpuconv.micro import"),
}


def changed(old: str, new: str) -> Syntax:
    assert SOURCE.count(old) == 1
    return parse(SOURCE.replace(old, new).encode())


@pytest.mark.parametrize("what", SAME)
def test_what_readers_see_does_not_count(what: str) -> None:
    assert changed(*SAME[what]) == parse(SOURCE.encode())


@pytest.mark.parametrize("what", OTHER)
def test_what_code_follows_from_counts(what: str) -> None:
    assert changed(*OTHER[what]) != parse(SOURCE.encode())


def test_what_stands_for_another_packages_module_counts_as_that() -> None:
    line = "from {} import dataclass"
    assert parse(line.format("baselib.data_classes").encode()) == parse(line.format("dataclasses").encode())


def test_every_python_gives_the_same() -> None:
    """What the rows of a store that several versions of Python share are stamped with."""
    found = parse(SOURCE.encode())
    assert found.content == "650b968045a2a1166d016f09c7aa6d31"
    assert found.imports == (
        Import("cpuconv.isa", "Isa", "Isa"),
        Import("cpuconv.runtime.kernel", "inline", "inline"),
        Import("cpuconv.runtime.kernel", "kernel", "driver"),
    )


def test_an_import_must_be_absolute() -> None:
    with pytest.raises(SyntaxError, match=r"must be absolute, not 'from \.\.isa import …'"):
        parse(b"from ..isa import table")
