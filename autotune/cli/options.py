"""Common parts of the commands: exit codes, options and their types."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.machine.device import allowed_cores
from autotune.workload import Problem, Reading, Workload
from baselib.text import count_of

AUTO = "auto"

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130

EPILOG = f"""exit codes:
  {OK:3}  done
  {FAILED:3}  failed: nothing to tune or to show, a problem without candidates, or a
       store or workload that cannot be used
  {USAGE:3}  wrong usage, or a source that cannot be read
  {INTERRUPTED:3}  interrupted; results are stored; run the same command to continue
"""


def say(message: str, code: int, program: str = "autotune") -> int:
    """Print a message for the user; return the exit code."""
    print(f"{program}: {message}", file=sys.stderr)
    return code


def printed(command: Callable[[], int]) -> int:
    """Run a command and flush its output; return its exit code, or `FAILED` if the reader closes the pipe early."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # else Python flushes again at exit, and reports an error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code


def load(workload: Workload, sources: Sequence[str], options: argparse.Namespace) -> list[Problem]:
    """Load the problems of the sources, according to the options."""
    return [problem for source in sources for problem in workload.load(source, reading(options))]


def reading(options: argparse.Namespace) -> Reading:
    """Return the settings for reading sources, according to the options."""
    if options.threads != AUTO and options.threads > allowed_cores() and getattr(options, "dask", None) is None:
        cores = count_of(allowed_cores(), "core")
        say(f"--threads {options.threads} exceeds the allowed number, {cores}, which is used instead", OK)
        options.threads = allowed_cores()  # prevents a second message
    threads = allowed_cores() if options.threads == AUTO else options.threads
    batches, inputs = getattr(options, "batches", ()), dict(getattr(options, "input", ()))
    return Reading(options.layouts, threads, batches, inputs, options.types, getattr(options, "precision", ""))


def layouts_text(options: argparse.Namespace) -> str:
    """Return the requested layouts in the store's notation; "" for the usual ones."""
    return ",".join(options.layouts or ())


def layouts(text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, 2) or not all(parts):
        raise argparse.ArgumentTypeError(f"must be 'IN,OUT' such as NCHW,NCHW, or auto, not {text!r}")
    return parts[0], parts[-1]


def threads(text: str) -> int | str:
    return AUTO if text == AUTO else positive(int)(text)


def batches(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(int)(part) for part in text.split(",")))


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, shape = text.rpartition("=")
    if not name or not equals or not all(part.isdecimal() and int(part) for part in shape.split("x")):
        raise argparse.ArgumentTypeError(f"must be 'NAME=1x3x224x224', not {text!r}")
    return name, tuple(map(int, shape.split("x")))


def part(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not slash or not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"must be 'I/N' from 1/N to N/N, not {text!r}")
    return int(index), int(count)


def new_file(text: str) -> Path:
    """Parse the path of a file, new or not, in an existing folder."""
    path = Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in a folder that exists, not {text!r}")
    return path


def whole(text: str) -> int:
    """Parse an integer, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, not {text!r}")
    return int(text)


def positive(kind: type[int] | type[float]) -> Any:
    """Return a parser of positive numbers."""

    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError as error:
            wanted = "an integer" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}") from error
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive, not {text}")
        return value

    return convert


def add_problem_options(made: argparse.ArgumentParser, kind: Any = None, more: str = "") -> None:
    """Add the options for reading problems: threads, layouts, types."""
    made.add_argument(
        "--threads",
        metavar="N",
        type=kind or positive(int),
        default=allowed_cores(),
        help=f"threads that will run the problems (default: the cores allowed, %(default)s){more}",
    )
    made.add_argument(
        "--layouts",
        metavar="L,L",
        type=layouts,
        help="layouts of input and output, or auto (default: for models those of the compiled network, for"
        " lists NCHW,NCHW)",
    )
    made.add_argument(
        "--types",
        metavar="TYPES",
        default="",
        help="element types of problems that do not state them: of all arrays (bf16, f16, u8, s8), or of input, weights"
        " and output (u8:s8:f32); a model's problems are then those of its file",
    )
