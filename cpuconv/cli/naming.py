"""Error messages in terms of the command line: options in place of arguments."""

from __future__ import annotations

import argparse
import re

_OPTIONS = {  # arguments whose option has another name
    "batches": "--batch",
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
    """Replace argument names in an error message by the options of the command; others stay."""

    def named(match: re.Match[str]) -> str:
        name, key = match["name"], match["key"]
        if name.startswith("-"):
            return f"{name} must"
        option = _OPTIONS.get(name) or (f"--{name.replace('_', '-')}" if hasattr(options, name) else None)
        if option is None:
            return match[0]
        return f"{option} {key} must" if key else f"{option} must"

    return _ARGUMENT.sub(named, message)
