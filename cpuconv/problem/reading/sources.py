"""Readers of problems: lists of benchdnn problem strings, and single problem strings.

ONNX files are read by `cpuconv.network.problems`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types

_NAME = re.compile(r'n"([^"]*?)(?:\*(\d+))?"')  # benchdnn: n"network:layer*repeats"
_COMMENT = re.compile(r'^((?:[^"#]|"[^"]*")*)#.*$')


class Entry(NamedTuple):
    """Problem of a source, with its label, number of occurrences and network."""

    problem: ConvProblem
    label: str
    count: int  # type: ignore[assignment]  # hides tuple.count
    network: str


def is_model(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a model file, not a list of problems."""
    return os.fspath(source).endswith(".onnx")


def load(
    source: str | os.PathLike[str],
    layouts: tuple[str, str] | None = None,
    threads: int = 1,
    types: Types = ALL_F32,
) -> list[Entry]:
    """Read all 2-D convolutions of a source in order; equal ones of a network are merged.

    Parameters
    ----------
    source : path or str
        A text file with one benchdnn problem string or key per line (``#`` starts a comment), or one problem string.
    layouts : (str, str) or None
        Layouts of input and output where the source states none; None: NCHW for both.
    threads : int
        Threads of each problem where the source states none.
    types : Types
        Element types where the source states none.

    Raises
    ------
    SourceError
        The file does not exist, or a line is not a problem; the message has the line number.
    """
    text = os.fspath(source)
    in_layout, out_layout = layouts or ("NCHW", "NCHW")
    settings = {"in_layout": in_layout, "out_layout": out_layout, "threads": threads, "types": types}
    if os.path.isdir(text):
        raise SourceError(f"Source {text!r} is a folder; an ONNX file, a text file or a problem string is needed.")
    if not os.path.isfile(text):
        return [_parse_source(text, settings)]
    entries = merged(_from_text(text, settings))
    if not entries:
        raise SourceError(f"Source {text!r} has no 2-D convolution.")
    return entries


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Merge equal problems of one network into one entry with the first label and the sum of the counts."""
    merged: dict[tuple[ConvProblem, str], Entry] = {}
    for entry in entries:
        first = merged.get((entry.problem, entry.network))
        merged[entry.problem, entry.network] = first._replace(count=first.count + entry.count) if first else entry
    return list(merged.values())


# --- problem strings ---------------------------------------------------------------------------------------------


def _parse_source(text: str, settings: Mapping[str, Any]) -> Entry:
    """Parse the source itself as a problem string."""
    if not re.match(r'(--\S+\s+)*\w+(\s|"|$)', text):
        raise SourceError(f"Source {text!r} must be a file that exists or a problem string; there is no such file.")
    try:
        return _entry(text, settings)
    except (ArgumentError, ArgumentTypeError) as error:
        raise SourceError(f"Source {text!r} must be a file that exists or a problem string: {error}") from error


def _entry(text: str, settings: Mapping[str, Any], network: str = "") -> Entry:
    """Parse one problem string with its name; the part of the name before a colon is the network."""
    problem = ConvProblem.parse(text, **settings)
    name = _NAME.search(text)
    label = name[1] if name else problem.shape_key
    stated, colon, _ = label.partition(":")
    return Entry(problem, label, int(name[2] or 1) if name else 1, stated if colon else network)


def _from_text(path: str, settings: Mapping[str, Any]) -> Iterator[Entry]:
    """Parse the problem strings of a file."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"Source {path!r} must be an .onnx file or a text file that can be read: {error}") from error
    for number, line in enumerate(lines, 1):
        text = _COMMENT.sub(r"\1", line).strip()
        if not text:
            continue
        try:
            yield _entry(text, settings, Path(path).stem)
        except (ArgumentError, ArgumentTypeError) as error:
            raise SourceError(f"{path}, line {number}: {error}") from error
