"""Report of a quantisation, per layer and for the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from baselib.data_classes import dataclass
from baselib.screen import Column, Report, Table
from baselib.text import count_of
from cpuconv.network.precision.prediction_bound import doubt

INT8, FLOAT32 = "int8", "float32"
COLUMNS = (
    Column("layer", least=10, keeps_end=True),
    Column("operator", rank=5, least=8),
    Column("precision"),
    Column("why", rank=4, least=12),
    Column("error", True),
    Column("error alone", True, rank=3),
    Column("µs, float32", True, rank=1),
    Column("µs, int8", True, rank=2),
)


@dataclass(frozen=True)
class Layer:
    """A convolution or matrix multiplication with constant weights, or an attention.

    Attributes
    ----------
    name, op : str
    precision : "int8" or "float32"
    why : str
        Reason why it stays float32; else "".
    error : float
        Relative RMS error of its own output in int8.
    error_alone : float or None
        Error of the network's outputs if only this layer is int8; far above the tolerance, that of the first samples.
        None if not measured.
    float_seconds, byte_seconds : float or None
        Time of the layer alone in float32 and int8, measured on this machine; None if not measured, or if another
        operator was fused with it.
    """

    name: str
    op: str
    precision: str
    why: str
    error: float
    error_alone: float | None = None
    float_seconds: float | None = None
    byte_seconds: float | None = None

    def cells(self) -> tuple[str, ...]:
        """Text of the layer's row, in the order of `COLUMNS`."""
        seconds = ("" if each is None else f"{each * 1e6:.1f}" for each in (self.float_seconds, self.byte_seconds))
        alone = "" if self.error_alone is None else f"{self.error_alone:.3g}"
        return self.name, self.op, self.precision, self.why, f"{self.error:.3g}", alone, *seconds


@dataclass(frozen=True)
class Reached:
    """Error that a tolerance bounds.

    Attributes
    ----------
    error : float
        Maximum of the bounded errors: on all samples, on held-out samples, and the bound for single unseen samples.
    tolerance : float
    samples : int
    """

    error: float
    tolerance: float
    samples: int

    def __str__(self) -> str:
        return "; ".join(filter(None, (f"{self.error:.3g} of at most {self.tolerance:.3g}", doubt(self.samples))))


@dataclass(frozen=True, repr=False)
class Quantized(Report):
    """Result of `cpuconv.quantize`.

    Attributes
    ----------
    file : Path
    bytes, bytes_before : int
        Sizes of the files.
    error : float
        Error of the outputs on the samples: relative RMS, or a user's metric.
    agreement : float or None
        Share of rows with the same largest class (top-1 agreement), if one output looks like class scores.
    seconds, seconds_before : float or None
        Time of a run on the first sample, measured on this machine in alternation; None if not requested.
    threads : int
    layers : tuple of Layer
        In order of execution.
    reached : Reached or None
        The error that the tolerance bounds; None without a tolerance.
    """

    file: Path
    bytes: int
    bytes_before: int
    error: float
    agreement: float | None
    seconds: float | None
    seconds_before: float | None
    threads: int
    layers: tuple[Layer, ...]
    reached: Reached | None = None

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of layers that stay float32."""
        return tuple(layer.name for layer in self.layers if layer.precision == FLOAT32)

    def facts(self) -> dict[str, str]:
        """Text of the network's results, by label."""
        facts = {
            "size": f"{self.bytes / 1e6:.2f} MB, before {self.bytes_before / 1e6:.2f} MB",
            "error": f"{self.error:.3g}",
        }
        if self.reached is not None:
            facts["tolerance"] = str(self.reached)
        if self.agreement is not None:
            facts["same class"] = f"{self.agreement:.1%}"
        if self.seconds is not None and self.seconds_before is not None:
            ratio = f"{self.seconds_before / self.seconds:.2f} times as fast"
            facts["time"] = f"{self.seconds * 1e3:.3f} ms, before {self.seconds_before * 1e3:.3f} ms: {ratio}"
            facts["time"] += f", on {count_of(self.threads, 'thread')}"
        facts["layers"] = f"{len(self.layers) - len(self.kept)} of {len(self.layers)} of int8"
        return facts

    def blocks(self) -> Iterator[str | Table]:
        """Text blocks of the printed report."""
        yield Table(COLUMNS, [layer.cells() for layer in self.layers])
        yield "\n".join([str(self.file), *(f"{name}: {fact}" for name, fact in self.facts().items())])

    def to_dict(self) -> Mapping[str, Any]:
        """Plain values of the report."""
        return {**asdict(self), "file": str(self.file)}
