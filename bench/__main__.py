"""List the benchmarks: `python -m bench`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

FOLDER = Path(__file__).parent
_COMMAND = re.compile(r"^def main\((argv|\))", re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    """Yield each benchmark's command and the first sentence of its docstring."""
    for path in sorted((*FOLDER.glob("*.py"), *FOLDER.glob("*/__main__.py"))):
        name = path.parent.name if path.stem == "__main__" else path.stem
        text = path.read_text(encoding="utf-8")
        if _COMMAND.search(text) and path != Path(__file__):
            words = " ".join((ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].split())
            yield f"python -m bench.{name}", words.partition(": `python")[0].rstrip(".:")


if __name__ == "__main__":
    print(tabulate(commands(), tablefmt="plain", maxcolwidths=[None, 80]))
