"""Reports as text fitted to a terminal, and as HTML: paragraphs, and tables with columns that shorten or drop."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from baselib.data_classes import dataclass
from baselib.locks import lazy

_GAP = 2  # spaces between columns
_MIN_WIDTH = 40  # min. width of a screen in characters; narrower ones wrap lines


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    title : str
    is_number : bool
        Whether it is right-aligned.
    rank : int
        0: always shown. On a narrow screen, columns of the highest rank are dropped first.
    least : int or None
        Min. characters of a shortened text; None: it is never shortened.
    keeps_end : bool
        Whether shortening cuts the beginning of a text instead of its end, as for paths.
    """

    title: str
    is_number: bool = False
    rank: int = 0
    least: int | None = None
    keeps_end: bool = False

    def shortened(self, text: str, width: int) -> str:
        """Shorten the text to at most `width` characters."""
        if len(text) <= width:
            return text
        return f"…{text[len(text) - width + 1 :]}" if self.keeps_end else f"{text[: width - 1]}…"


@dataclass(frozen=True)
class Table:
    """Columns and rows of text."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    def used(self) -> Table:
        """Return the table without empty columns, except those of rank 0."""
        places = [at for at, column in enumerate(self.columns) if not column.rank or any(row[at] for row in self.rows)]
        return self._of(places)

    def _of(self, places: Sequence[int]) -> Table:
        return Table([self.columns[at] for at in places], [[row[at] for at in places] for row in self.rows])

    @lazy
    def _widths(self) -> list[int]:
        """Length of the longest text of each column."""
        return [
            max([len(column.title), *(len(row[at]) for row in self.rows)]) for at, column in enumerate(self.columns)
        ]

    def fitted(self, width: int) -> tuple[Table, list[str]]:
        """Fit the table to `width` characters, as far as columns of rank 0 allow; return it and the dropped titles."""
        places = [*range(len(self.columns))]
        natural = self._widths
        left_out: list[int] = []

        def least(at: int) -> int:
            column = self.columns[at]
            return natural[at] if column.least is None else min(natural[at], max(column.least, len(column.title)))

        def total(widths: Sequence[int]) -> int:
            return sum(widths) + _GAP * (len(widths) - 1)

        while total([least(at) for at in places]) > width and any(self.columns[at].rank for at in places):
            last = max(places, key=lambda at: (self.columns[at].rank, at))
            places.remove(last)
            left_out.append(last)
        widths = {at: natural[at] for at in places}
        while total([*widths.values()]) > width:
            widest = max((at for at in places if widths[at] > least(at)), key=widths.__getitem__, default=None)
            if widest is None:
                break
            widths[widest] -= 1
        made = self._of(places)
        rows = [
            [column.shortened(text, widths[at]) for at, column, text in zip(places, made.columns, row, strict=True)]
            for row in made.rows
        ]
        return replace(made, rows=rows), [self.columns[at].title for at in sorted(left_out)]

    def text(self) -> str:
        """Return the table as lines: titles, a rule, and rows."""
        widths = self._widths
        rule = ["-" * width for width in widths]
        return "\n".join(map(self._line, ([column.title for column in self.columns], rule, *self.rows)))

    def _line(self, texts: Sequence[str]) -> str:
        padded = (
            f"{text:{'>' if column.is_number else '<'}{width}}"
            for column, text, width in zip(self.columns, texts, self._widths, strict=True)
        )
        return (" " * _GAP).join(padded).rstrip()

    def html(self) -> str:
        """Return the table as an HTML element."""
        from html import escape

        def cells(kind: str, texts: Sequence[str]) -> str:
            styles = ("right" if column.is_number else "left" for column in self.columns)
            return "".join(
                f'<{kind} style="text-align:{side};white-space:nowrap">{escape(text)}</{kind}>'
                for side, text in zip(styles, texts, strict=True)
            )

        head = cells("th", [column.title for column in self.columns])
        body = "".join(f"<tr>{cells('td', row)}</tr>" for row in self.rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Report:
    """Base class of reports of paragraphs and tables: printed fitted to a terminal, and shown as HTML in a notebook."""

    WIDE: ClassVar[str] = "print(….text()) shows all"

    def blocks(self) -> Iterator[str | Table]:
        """Yield paragraphs, which may have several lines, and tables."""
        raise NotImplementedError

    def text(self, width: int | None = None, wide: str = WIDE) -> str:
        """Return the report in lines of at most `width` characters where possible; None: unlimited.

        `wide` tells the user how to see dropped columns.
        """
        return as_text(self.blocks(), width, wide)

    def __str__(self) -> str:
        return self.text(terminal_width())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        return as_html(self.blocks())


def terminal_width() -> int | None:
    """Return the line width of the terminal on standard output; None if it is not a terminal."""
    import shutil  # not needed by most starts

    try:
        is_terminal = sys.stdout.isatty()
    except (AttributeError, ValueError):  # standard output is missing or closed
        return None
    return max(_MIN_WIDTH, shutil.get_terminal_size().columns) if is_terminal else None


def as_text(blocks: Iterator[str | Table], width: int | None, wide: str) -> str:
    """Return blocks as lines, with an empty line around each table."""
    parts: list[str] = []
    was_table = False
    for block in blocks:
        is_table = isinstance(block, Table)
        if parts and (is_table or was_table):
            parts.append("")
        parts += _lines(block.used() if isinstance(block, Table) else block, width, wide)
        was_table = is_table
    return "\n".join(parts)


def _lines(block: str | Table, width: int | None, wide: str) -> Iterator[str]:
    if isinstance(block, str):
        yield from block.splitlines() if width is None else wrapped(block, width)
    elif width is None:
        yield block.text()
    else:
        fitted, left_out = block.fitted(width)
        yield fitted.text()
        if left_out:
            yield from wrapped(f"left out for width: {', '.join(left_out)} ({wide})", width)


def pairs_text(pairs: Sequence[tuple[str, str]], width: int | None) -> str:
    """Return names and texts in two columns; texts wrap at the width."""
    import textwrap

    indent = max((len(name) for name, _ in pairs), default=0) + _GAP
    lines = []
    for name, text in pairs:
        parts = [text] if width is None else textwrap.wrap(text, max(20, width - indent), break_on_hyphens=False)
        lines += [f"{'' if at else name:{indent}}{part}" for at, part in enumerate(parts or [""])]
    return "\n".join(lines)


def wrapped(text: str, width: int) -> list[str]:
    """Wrap text to lines of at most `width` characters; continuation lines are indented."""
    import textwrap

    return [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
    ]


def as_html(blocks: Iterator[str | Table]) -> str:
    """Return blocks as HTML."""
    from html import escape

    parts = []
    for block in blocks:
        if isinstance(block, Table):
            parts.append(f'<div style="overflow-x:auto">{block.used().html()}</div>')
        else:
            parts.append(f"<p>{'<br>'.join(escape(line) for line in block.splitlines())}</p>")
    return "".join(parts)
