"""`--wide`: reports in full, or fitted to the terminal."""

from __future__ import annotations

import argparse

from autotune.screen import Report, terminal_width

WIDE = "--wide shows all"


def add_wide(made: argparse.ArgumentParser) -> None:
    """Give a command the option."""
    made.add_argument(
        "--wide", action="store_true", help="show all columns in full, whatever the width of the terminal"
    )


def on_screen(report: Report, options: argparse.Namespace) -> str:
    """A report as the options ask for it."""
    return report.text(None if options.wide else terminal_width(), WIDE)
