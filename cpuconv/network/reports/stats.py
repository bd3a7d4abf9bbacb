"""Statistics of a model that runs: counted runs and latencies, programs, kernels and memory; also for Prometheus."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import Lock
from baselib.screen import Column, Report, Table

LATEST = 1024  # runs that percentiles are of
_QUANTILES = (0.5, 0.9, 0.99)
_METRICS = {
    "failures": ("runs_failed_total", "counter", "Runs that raised."),
    "programs": ("programs", "gauge", "Cached programs, one for each shape of the inputs."),
    "program_bytes": ("program_bytes", "gauge", "Size of cached programs and of the memory of their runs."),
    "weight_bytes": ("weight_bytes", "gauge", "Size of packed weights, which models of one file share."),
    "kernels_compiled": ("kernels_compiled_total", "counter", "Kernels that this process compiled, for all models."),
    "kernels_loaded": ("kernels_loaded_total", "counter", "Kernels that this process loaded, for all models."),
}


class RunLog:
    """Counted runs, and the latencies of the latest ones; several threads may add to it.

    A run only appends its latency to `new`, which is atomic; these are counted when there are more than `LATEST`, or
    when a caller requests statistics.
    """

    def __init__(self) -> None:
        self.runs = self.failures = 0
        self.seconds = 0.0
        self.latest: deque[float] = deque(maxlen=LATEST)
        self.new: deque[float] = deque()
        self._lock = Lock()

    def fail(self) -> None:
        """Count a run that raised."""
        with self._lock:
            self.failures += 1

    def count(self) -> None:
        """Count the runs that were recorded before."""
        with self._lock:
            for _ in range(len(self.new)):
                seconds = self.new.popleft()
                self.runs += 1
                self.seconds += seconds
                self.latest.append(seconds)


@dataclass(frozen=True, repr=False)
class Stats(Report):
    """Statistics of a model since it was made.

    Attributes
    ----------
    model : str
        Name of the network.
    runs, failures : int
        Runs that returned, and runs that raised.
    seconds : float
        Total latency of the runs that returned, with the conversion of pictures.
    p50, p90, p99, max : float
        Latency of the latest 1,024 runs, in seconds; 0 without runs.
    programs : int
        Cached programs, one for each shape of the inputs.
    program_bytes : int
        Size of the programs and of the memory of their runs, in bytes.
    weight_bytes : int
        Size of the packed weights, in bytes; models of one file in a process share them.
    kernels_compiled, kernels_loaded : int
        Kernels that this process compiled, and loaded from the cache folder or a pack, for all models.
    """

    model: str
    runs: int
    failures: int
    seconds: float
    p50: float
    p90: float
    p99: float
    max: float
    programs: int
    program_bytes: int
    weight_bytes: int
    kernels_compiled: int
    kernels_loaded: int

    @classmethod
    def of(cls, model: str, log: RunLog, **more: int) -> Stats:
        """Make the statistics of a model from its log; `more` has the other attributes."""
        log.count()
        latest = [*log.latest] or [0.0]
        p50, p90, p99, longest = map(float, np.quantile(latest, (*_QUANTILES, 1.0)))
        return cls(model, log.runs, log.failures, log.seconds, p50, p90, p99, longest, **more)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    def prometheus(self) -> str:
        """Return the metrics in Prometheus' text format, labelled with the model's name."""
        name = self.model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        label, lines = f'model="{name}"', []
        lines += [
            "# HELP cpuconv_run_seconds Latency of runs.",
            "# TYPE cpuconv_run_seconds summary",
            *(
                f'cpuconv_run_seconds{{{label},quantile="{quantile}"}} {seconds}'
                for quantile, seconds in zip(_QUANTILES, (self.p50, self.p90, self.p99), strict=True)
            ),
            f"cpuconv_run_seconds_sum{{{label}}} {self.seconds}",
            f"cpuconv_run_seconds_count{{{label}}} {self.runs}",
        ]
        for attribute, (metric, kind, text) in _METRICS.items():
            lines += [f"# HELP cpuconv_{metric} {text}", f"# TYPE cpuconv_{metric} {kind}"]
            lines.append(f"cpuconv_{metric}{{{label}}} {getattr(self, attribute)}")
        return "\n".join((*lines, ""))

    def blocks(self) -> Iterator[str | Table]:
        """The printed table and text."""
        forms = {int: "{:,}", float: "{:.6g} s"}
        rows = [
            (name.replace("_", " "), forms[type(value)].format(value)) for name, value in [*asdict(self).items()][1:]
        ]
        yield Table([Column(f"cpuconv.Model {self.model}"), Column("value", True)], rows)
