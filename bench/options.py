"""Options that several commands have, and how they are parsed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from baselib.files import write_whole
from bench.networks import SETS
from bench.shapes import CANONICAL

INTERRUPTED = 130  # exit code after Ctrl-C
STRATEGIES = ("cached", "heuristic", "profile")


def positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Parse comma-separated positive integers."""
    return tuple(map(positive, text.split(",")))


def words(text: str, valid: Collection[str], option: str) -> tuple[str, ...]:
    """Parse the comma-separated words of an option, in order.

    Raises
    ------
    SystemExit
        If one is not in `valid`.
    """
    found = tuple(word for word in text.split(",") if word)
    if unknown := sorted(set(found) - set(valid)):
        raise SystemExit(f"Argument '{option}' must be of {', '.join(valid)}, not {', '.join(unknown)}.")
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "folder": {"type": Path, "metavar": "DIR", "help": "folder with the files of bench.networks"},
    "--networks": {"default": "", "metavar": "NAMES", "help": "comma-separated (all in the folder)"},
    "--set": {"default": SETS[0], "choices": SETS, "help": "networks of these years (%(default)s)"},
    "--shapes": {"type": Path, "default": CANONICAL, "metavar": "FILE", "help": "benchdnn problem strings"},
    "--lines": {"default": "", "metavar": "REGEX", "help": "only lines whose name or problem matches"},
    "--threads": {"type": counts, "default": "1", "help": "threads, as 1,2 (%(default)s)"},
    "--batch": {"type": counts, "default": "1", "help": "images, as 1,8 (%(default)s)"},
    "--peers": {"help": "other engines, comma-separated (%(default)s)"},
    "--strategy": {"default": STRATEGIES[0], "choices": STRATEGIES, "help": "strategy of cpuconv (%(default)s)"},
    "--rounds": {"type": positive, "default": 5, "help": "timings of each (%(default)s)"},
    "--seconds": {"type": float, "default": 0.3, "help": "seconds per timing (%(default)s)"},
    "--timeout": {"type": float, "default": 600.0, "help": "timeout per engine, in seconds (%(default)s)"},
    "--json": {"type": Path, "metavar": "FILE", "help": "write everything measured"},
}


def parser(command: str, text: str | None, *options: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return the parser of a command with some of `OPTIONS`; `defaults` replaces their default values."""
    p = argparse.ArgumentParser(prog=f"bench.{command}", description=text)
    for option in options:
        p.add_argument(option, **OPTIONS[option])
    p.set_defaults(**defaults)
    return p


def write_json(file: Path | None, data: object) -> None:
    """Write data to the file of the option --json, if it was given."""
    if file:
        write_whole({file: json.dumps(data, indent=1) + "\n"})
