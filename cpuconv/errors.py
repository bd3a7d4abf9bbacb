"""Public exceptions and warnings, and the format of their messages."""

from __future__ import annotations

import errno

from cpuconv.names import shortened

MAX_MESSAGE = 2000  # characters of a message; names and lists from a model may be arbitrarily long


class CpuconvError(Exception):
    """Base class of all exceptions that cpuconv raises deliberately."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(each, MAX_MESSAGE) if isinstance(each, str) else each for each in args))


class ArgumentError(CpuconvError, ValueError):
    """An argument has the right type but an unsupported value."""


class ArgumentTypeError(CpuconvError, TypeError):
    """An argument has the wrong type or dtype."""


class WorkspaceError(ArgumentError):
    """No algorithm fits the workspace limit."""


class SourceError(CpuconvError):
    """A source of problems (a model, a list, a problem string) cannot be read."""


class MissingFileError(SourceError, FileNotFoundError):
    """The file of a source does not exist."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.errno, self.filename = errno.ENOENT, path

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.filename)


class RunStopped(CpuconvError):
    """A run was ended by its `stop` callable. It returns no results; the model can run again."""


class CpuconvWarning(UserWarning):
    """Something was skipped or takes a slow path; results are correct."""


def must(name: str, expected: object, actual: object) -> str:
    """Format an error message: ``Argument 'x' must be …, not ….``"""
    return f"Argument '{name}' must be {expected}, not {actual}."


def kind_of(value: object) -> str:
    """Describe the type of a value for a message: "None", or its type with an article, as in "a list" or "an int"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
