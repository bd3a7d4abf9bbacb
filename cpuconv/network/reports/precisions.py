"""How precisions were chosen: of each operator precision, error and time, and what the other one would change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from autotune.data_classes import dataclass
from autotune.screen import Column, Report, Table

COLUMNS = (
    Column("operator", least=10, keeps_end=True),
    Column("kind", rank=3, least=8),
    Column("precision"),
    Column("types", rank=4),
    Column("µs", True),
    Column("error", True),
    Column("other precision: µs", True, rank=1),
    Column("error", True, rank=2),
)


@dataclass(frozen=True)
class PrecisionRow:
    """One operator, in the order in which they run.

    Attributes
    ----------
    name, op : str
        What the model calls the node, and its operator.
    precision : str
        "int8" where it reads or writes bytes, "bfloat16" where it may round, else "float32".
    types : str
        Of its elements, as `explain` has them.
    seconds : float
        By the models.
    error : float or None
        What its rounding adds to the error of the outputs, with that of those before it; measured, whether or not it
        rounds here. Of what may multiply bytes the outputs' error where it alone does. None: not measured, as where it
        is never faster with bfloat16.
    step_seconds : float or None
        What a run takes more where the operator has the other precision: by the models, or between bytes and floats as
        it was measured alone.
    step_error : float or None
        The error of the outputs then, estimated: squares of errors add up.
    """

    name: str
    op: str
    precision: str
    types: str
    seconds: float
    error: float | None
    step_seconds: float | None
    step_error: float | None


@dataclass(frozen=True, repr=False)
class PrecisionTable(Report):
    """Prints itself; `to_dict` gives the same as plain values.

    Attributes
    ----------
    name : str
        Of the network.
    tolerance, error : float
        Asked for, and measured: the largest of all samples, or what samples to come need by the spread of these.
    chosen : str
        "float32", "bfloat16" or "mixed" of both; "int8" where products multiply bytes and nothing rounds to bfloat16,
        "int8, bfloat16" where all else may, "int8, mixed" where some of it may.
    seconds : mapping of str to float
        Of a run, measured in turns, of these as far as they were timed: of those whose error is within the tolerance.
    errors : mapping of str to float
        Of the same.
    rows : list of PrecisionRow
    left_out : mapping of str to str
        Of what was not timed, the reason.
    doubt : str
        Why nothing is known of the errors of other samples; "".
    """

    name: str
    tolerance: float
    error: float
    chosen: str
    seconds: Mapping[str, float]
    errors: Mapping[str, float]
    rows: list[PrecisionRow]
    left_out: Mapping[str, str]
    doubt: str

    def to_dict(self) -> dict[str, Any]:
        """As plain values; infinite errors, which JSON has no form of, are None."""
        rows = [{name: _plain(value) for name, value in asdict(row).items()} for row in self.rows]
        return {**asdict(self), "rows": rows}

    def blocks(self) -> Iterator[str | Table]:
        """What it prints."""
        times = "; ".join(
            f"{kind} {1e3 * each:.3f} ms, error {self.errors[kind]:.2g}" for kind, each in self.seconds.items()
        )
        yield "\n".join(
            [
                f"{self.name}: {self.chosen}, error {self.error:.2g} of at most {self.tolerance:.2g}",
                *filter(None, [self.doubt]),
                f"measured: {times}",
                *(f"left out: {kind}, {why}" for kind, why in self.left_out.items()),
            ]
        )
        yield Table(
            COLUMNS,
            [
                (
                    row.name, row.op, row.precision, row.types, f"{1e6 * row.seconds:.1f}", _number(row.error),
                    "" if row.step_seconds is None else f"{1e6 * row.step_seconds:+.1f}", _number(row.step_error),
                )
                for row in self.rows
            ],
        )  # fmt: skip


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
