"""Errors of the library in the words of the command line: options in place of arguments."""

from __future__ import annotations

import argparse
import re

_OPTIONS = {  # of arguments whose option has another name
    "data": "--data",
    "feed": "--input",
    "image_mean": "--mean",
    "image_std": "--std",
    "input_shapes": "--shape",
    "node_precisions": "--node-precision",
    "output": "--output",
    "path": "MODEL",
    "source": "MODEL",
}
_ARGUMENT = re.compile(r"Argument '(?P<name>\w+|--?[\w-]+[^']*)(?:\['(?P<key>[^']*)'\])?' must")


def in_options(message: str, options: argparse.Namespace) -> str:
    """An error's message, arguments named as the options of the command that was given; others stay."""

    def named(match: re.Match[str]) -> str:
        name, key = match["name"], match["key"]
        if name.startswith("-"):
            return f"{name} must"
        option = _OPTIONS.get(name) or (f"--{name.replace('_', '-')}" if hasattr(options, name) else None)
        if option is None:
            return match[0]
        return f"{option} {key} must" if key else f"{option} must"

    return _ARGUMENT.sub(named, message)
