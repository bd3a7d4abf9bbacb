"""The option `--wide`: reports in full instead of fitted to the terminal."""

from __future__ import annotations

import argparse

from baselib.screen import Report, terminal_width

WIDE = "--wide shows all"


def add_wide(made: argparse.ArgumentParser) -> None:
    """Add the option to a command."""
    made.add_argument(
        "--wide", action="store_true", help="show all columns in full, whatever the width of the terminal"
    )


def on_screen(report: Report, options: argparse.Namespace) -> str:
    """Format a report according to the options."""
    return report.text(None if options.wide else terminal_width(), WIDE)
