"""Progress bars on standard error, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def bar(title: str, refresh: bool = True) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show a bar; yields a function of the current task, the steps done, and all steps (0: unknown), or None.

    Without `refresh` it is drawn only by that function, so that nothing else runs while something is timed.
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=refresh) as shown:
        task = shown.add_task(title, total=None)
        told = ""

        def show(what: str, done: int, total: int) -> None:
            nonlocal told
            if what != told:
                shown.reset(task)  # the remaining time is estimated per task
                told = what
            shown.update(task, description=f"{title}: {what}", completed=done, total=total or None)
            if not refresh:
                shown.refresh()

        yield show
