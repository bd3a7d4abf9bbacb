"""The exceptions and warnings that users of cpuconv can meet, and how their messages read."""

from __future__ import annotations

import errno

from cpuconv.names import shortened

MOST_MESSAGE = 2000  # characters of a message: names and lists in it are a model's, and as long as it likes


class CpuconvError(Exception):
    """Whatever cpuconv raises on purpose."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(each, MOST_MESSAGE) if isinstance(each, str) else each for each in args))


class ArgumentError(CpuconvError, ValueError):
    """An argument of the right type has a value that cannot be served."""


class ArgumentTypeError(CpuconvError, TypeError):
    """An argument is of the wrong type or dtype."""


class WorkspaceError(ArgumentError):
    """No algorithm fits the workspace limit."""


class SourceError(CpuconvError):
    """A source of problems (a model, a list, a problem string) cannot be read."""


class MissingFileError(SourceError, FileNotFoundError):
    """A source is a file that is not there."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.errno, self.filename = errno.ENOENT, path

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.filename)


class RunStopped(CpuconvError):
    """A run was ended because its `stop` said so. It gives no results; the model can run again."""


class CpuconvWarning(UserWarning):
    """Something was left out or done the slow way; the result is right."""


def must(name: str, expected: object, actual: object) -> str:
    """The one form of our messages: ``Argument 'x' must be …, not ….``"""
    return f"Argument '{name}' must be {expected}, not {actual}."


def kind_of(value: object) -> str:
    """The kind of a value for a message: "None", or its type with an article, as in "a list" or "an int"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
