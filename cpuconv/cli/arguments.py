"""Argparse types for the options of `cpuconv`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cpuconv.api.precision import AUTO
from cpuconv.cli.feeds import RANDOM
from cpuconv.cli.other_engines import ENGINES
from cpuconv.conv.choice.target import PRECISION_ALIASES, precision_named, supported_precisions
from cpuconv.errors import ArgumentError


def given_input(text: str) -> tuple[str, str]:
    """Parse an input's name and its file or `RANDOM`."""
    name, equals, file = text.partition("=")
    if not name or not file:
        raise argparse.ArgumentTypeError(f"must be 'NAME=file.npy' or 'NAME={RANDOM}', not {text!r}")
    return name, file


def precision(text: str) -> str:
    """Parse a precision, one of its aliases, or `AUTO`."""
    try:
        return AUTO if text == AUTO else precision_named(text, more=[AUTO])
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error).partition(" ")[2].partition("' ")[2].rstrip(".")) from error


def node_precision(text: str) -> tuple[str, str]:
    """Parse a node's name and its precision."""
    name, _, stated = text.rpartition("=")
    named = PRECISION_ALIASES.get(stated, stated)
    if not name or named not in supported_precisions():
        raise argparse.ArgumentTypeError(f"must be NAME={'|'.join(supported_precisions())}, not {text!r}")
    return name, named


def folder(text: str) -> Path:
    """Parse the path of a folder that need not exist."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a folder, or a new one, not {text!r}")
    return path


def engine_names(text: str) -> tuple[str, ...]:
    """Parse comma-separated names of `ENGINES`."""
    names = tuple(filter(None, text.split(",")))
    if not names or not {*names} <= {*ENGINES}:
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(ENGINES)}, not {text!r}")
    return names
