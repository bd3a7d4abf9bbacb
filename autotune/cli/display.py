"""Progress on standard error: a bar on a terminal, otherwise one line per problem."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from autotune.tuning.progress import Listener, Progress

_LABEL = 28  # max. columns of a problem's label, so that the remaining time fits into 80 columns


@contextlib.contextmanager
def display() -> Iterator[Listener]:
    """Show a warmup's progress while the context lasts."""
    if not sys.stderr.isatty():
        yield _line
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, note="")

        def show(state: Progress) -> None:
            what = state.label or "compiling"
            bar.update(task, completed=state.fraction, description=f"{what[:_LABEL]:{_LABEL}}", note=_note(state))

        yield show


def _line(state: Progress) -> None:
    if state.ended:
        print(f"{state.label}: {_note(state)}", file=sys.stderr, flush=True)


def _note(state: Progress) -> str:
    best = f"{state.gflops:.1f} GFLOP/s, " if state.gflops else ""
    minutes, seconds = divmod(round(state.left), 60)
    return f"{best}{state.done} of {state.total}, {minutes}:{seconds:02} left"
