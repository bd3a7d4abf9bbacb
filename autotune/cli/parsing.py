"""Command-line parser with one-line errors that suggest the command or option that was probably meant."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from baselib.text import suggested

_USAGE = 2
_DISTRIBUTION = "cpuconv"  # distribution of both programs


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` without usage text in its errors; its subparsers are of this class too."""

    _given: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Exit with one line that names the error and the help option."""
        unknown = [text for text in self._given if text.startswith("--") and not self._knows(text)]
        if message.startswith("the following arguments are required") and unknown:  # the more likely cause
            message = self._unrecognized(unknown)
        self.exit(_USAGE, f"{self.prog.split()[0]}: {message}; see '{self.prog} --help'\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse all arguments; report leftover ones as an error of this parser, which knows its own options."""
        self._given = sys.argv[1:] if args is None else list(args)
        known, left = super().parse_known_args(args, namespace)
        if left:
            self.error(self._unrecognized(left))
        return known, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among an argument's choices, and suggest the most similar one."""
        choices = action.choices
        if choices is None or value in choices:
            return
        names = [str(choice) for choice in choices]
        what = "command" if isinstance(action, argparse._SubParsersAction) else "choice"
        help = suggested(str(value), names) or f" (choose from {', '.join(names)})"
        told = f"invalid {what}: {str(value)!r}{help}"
        raise argparse.ArgumentError(None if what == "command" else action, told)

    def _knows(self, text: str) -> bool:
        name = text.partition("=")[0]
        return any(option.startswith(name) for option in self._option_string_actions)

    def _unrecognized(self, left: Sequence[str]) -> str:
        first = next((text for text in left if text.startswith("-")), left[0]).partition("=")[0]
        return f"unrecognized argument {first!r}{suggested(first, self._option_string_actions)}"


class _Version(argparse.Action):
    """`--version`: print the version and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        try:
            installed = version(_DISTRIBUTION)
        except PackageNotFoundError:
            installed = "unknown version, not installed"
        owner = "" if parser.prog == _DISTRIBUTION else f" ({_DISTRIBUTION})"
        system = f"{platform.system()} {platform.machine()}"
        print(f"{parser.prog} {installed}{owner}, Python {platform.python_version()}, {system}")
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the option `--version` to a program."""
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
