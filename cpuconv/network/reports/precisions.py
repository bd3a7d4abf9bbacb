"""Report on the selection of precisions: precision, error and time per operator, and the effect of the other one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from baselib.data_classes import dataclass
from baselib.screen import Column, Report, Table

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
    """One operator, in the order of execution.

    Attributes
    ----------
    name, op : str
        Name of the node in the model, and its operator.
    precision : str
        "int8" if it reads or writes int8 or uint8, "bfloat16" or "float16" if it may round, otherwise "float32".
    types : str
        Element types, as in `explain`.
    seconds : float
        Modelled time, in seconds.
    error : float or None
        Measured increase of the outputs' error by its rounding, with the operators before it rounding too, whether or
        not it rounds here. For an int8 candidate, the outputs' error if only this operator is int8. Above the
        tolerance, it may be that of the first samples only, and is printed as a lower bound ("≥"). None: not measured,
        such as when rounding is never faster.
    step_seconds : float or None
        Added time of a run if the operator has the other precision: modelled, or between int8 and floating point as
        measured for it alone.
    step_error : float or None
        Estimated error of the outputs in that case: squares of errors add up.
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
    """A report that prints itself; `to_dict` gives the same as plain values.

    Attributes
    ----------
    name : str
        Name of the network.
    tolerance, error : float
        Requested and measured: the largest error of all samples, or the tolerance that unseen inputs need if larger.
    chosen : str
        "float32", "bfloat16" (on some Arm CPUs "float16") or "mixed" of both. "int8": some operators multiply in int8,
        and nothing rounds; "int8, bfloat16": all others may round to it; "int8, mixed": some of the others may.
    seconds : mapping of str to float
        Time of a run for each of these that was timed, in turn: those with an error within the tolerance.
    errors : mapping of str to float
        Their errors.
    rows : list of PrecisionRow
    left_out : mapping of str to str
        Those that were not timed, with the reason.
    doubt : str
        Why the error of unseen inputs cannot be estimated; "" if it can.
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
        """Convert to plain values; infinite errors become None, as JSON does not support infinity."""
        rows = [{name: _plain(value) for name, value in asdict(row).items()} for row in self.rows]
        return {**asdict(self), "rows": rows}

    def blocks(self) -> Iterator[str | Table]:
        """The printed text and table."""
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
                    row.name, row.op, row.precision, row.types, f"{1e6 * row.seconds:.1f}", _number(row.error, least),
                    "" if row.step_seconds is None else f"{1e6 * row.step_seconds:+.1f}",
                    _number(row.step_error, least),
                )
                for row in self.rows
                for least in [row.error is not None and row.error > self.tolerance]
            ],
        )  # fmt: skip


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None, least: bool) -> str:
    """Text of an error; `least`: it is a lower bound."""
    return "" if value is None else f"{'≥' * least}{value:.2g}"
