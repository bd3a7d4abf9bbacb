"""A model that runs any batch by programs of a few batch sizes: batches are split and padded by measured times."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from baselib.locks import Lock
from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Value
from cpuconv.graph.stopping import Stop
from cpuconv.memory.aligned import aligned
from cpuconv.network.model import Model
from cpuconv.network.model_reports import ModelReports
from cpuconv.network.ports import OutputArrays, Port, converted, fed
from cpuconv.network.thread_count import timed

if TYPE_CHECKING:
    from cpuconv.network.reports.profile import Profile
    from cpuconv.network.saved.container import Blocks

_SYMBOL = "batch"  # name of the first axis where the model writes 1


class Splitting:
    """Sums of batch sizes for any number of items, with the smallest total time; the last one may be padded.

    Parameters
    ----------
    seconds : mapping of int to float
        Time of a run by batch size.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self._seconds = seconds
        self._best = [(0.0, 0)]  # total time and first batch, by number of items
        self._lock = Lock()

    def __call__(self, items: int) -> list[int]:
        """Return the batch sizes of the runs for a number of items, in order."""
        with self._lock:
            best = self._best
            for count in range(len(best), items + 1):
                best.append(min((own + best[max(0, count - size)][0], -size) for size, own in self._seconds.items()))
        sizes = []
        while items > 0:
            sizes.append(-best[items][1])
            items -= sizes[-1]
        return sizes or [min(self._seconds)]


class BatchedModel(Model):
    """A model whose batch has any size.

    Parameters
    ----------
    models : mapping of int to Model
        The model with fixed sizes, by batch size.
    inputs, outputs : collection of str
        Names of the ports whose first axis is the batch.
    seconds : mapping of int to float, or None
        Time of a run by batch size; None: measured.

    Attributes
    ----------
    batched : tuple of frozenset of str
        The same names.
    """

    def __init__(
        self,
        models: Mapping[int, Model],
        inputs: Collection[str],
        outputs: Collection[str],
        seconds: Mapping[int, float] | None = None,
    ) -> None:
        largest = models[max(models)]
        known = {port.name: Value(port.shape, port.dtype) for port in largest.outputs}
        super().__init__(largest._definition, largest._programs, known, largest._opened.make, None)
        self._models, self.batched = models, (frozenset(inputs), frozenset(outputs))
        self.set_seconds(_measured(models) if seconds is None else seconds)
        self.inputs, self.outputs = (
            tuple(_opened(port) if port.name in names else port for port in ports)
            for names, ports in zip(self.batched, (self.inputs, self.outputs), strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Size of the programs of all batch sizes and of the memory of their runs, in bytes."""
        return sum(model.nbytes for model in self._models.values())

    def _parts(self) -> Sequence[ModelReports]:
        return [part for model in self._models.values() for part in model._parts()]

    def set_seconds(self, seconds: Mapping[int, float]) -> None:
        """State the measured time of a run by batch size."""
        self.batches, self._split = dict(seconds), Splitting(seconds)

    def _header(self, blocks: Blocks) -> dict[str, Any]:
        """The header of the model of the largest batch, with those of the others; equal weights are stored once."""
        headers = {size: model._header(blocks) for size, model in self._models.items()}
        header = headers.pop(max(headers))
        inputs, outputs = map(sorted, self.batched)
        seconds = [[size, self.batches[size]] for size in self._models]
        return {
            **header,
            "batches": {"inputs": inputs, "outputs": outputs, "seconds": seconds, "others": [*headers.values()]},
        }

    def _run(
        self, feed: Mapping[str, object], out: Mapping[str, np.ndarray] | None, stop: Stop | None, convert: bool
    ) -> dict[str, np.ndarray]:
        given, others = self._divided(feed, convert)
        items = self._items(given)
        if items in self._models:
            return self._models[items]._run({**given, **others}, out, stop, False)
        values = {port.name: self.at(port, items) for port in self._models[max(self._models)].outputs}
        outputs = OutputArrays(values).given({} if out is None else out, [*given.values()])
        start = 0
        for size in self._split(items):
            rows = slice(start, min(start + size, items))
            part = {
                name: _padded(each[rows], size) if name in self.batched[0] else each for name, each in given.items()
            }
            full = rows.stop - start == size
            places = {name: outputs[name][rows] for name in self.batched[1]} if full else {}
            found = self._models[size]._run({**part, **others}, places, stop, False)
            for name in outputs.keys() - places.keys():
                whole = outputs[name][rows] if name in self.batched[1] else outputs[name]
                whole[...] = found[name][: len(whole)] if name in self.batched[1] else found[name]
            start += size
        return outputs

    def _divided(self, feed: Mapping[str, object], convert: bool) -> tuple[dict[str, np.ndarray], Mapping[str, object]]:
        """The arrays of the inputs by name, after validation, and feeds of defaults."""
        names = {port.name for port in self.defaults}
        others = {name: feed[name] for name in names if name in feed} if names and isinstance(feed, Mapping) else {}
        own = {name: feed[name] for name in feed if name not in others} if others else feed
        arrays = fed(self.inputs, converted(self.inputs, own) if convert else own)
        return dict(zip((port.name for port in self.inputs), arrays, strict=True)), others

    def _items(self, given: Mapping[str, np.ndarray]) -> int:
        """The size of the batch; shapes are checked."""
        items = next(len(array) for name, array in given.items() if name in self.batched[0])
        for port in self._models[max(self._models)].inputs:
            value, array = self.at(port, items), given[port.name]
            if not value.fits(array.shape):
                raise ArgumentError(must(f"feed[{port.name!r}]", f"of a shape that fits {value}", array.shape))
        return items

    def at(self, port: Port, items: int) -> Value:
        """The type of a port for a number of items."""
        batched = port.name in self.batched[0] | self.batched[1]
        return Value((items, *(port.shape or ())[1:]) if batched else port.shape, port.dtype)

    def _profile(self, feed: Mapping[str, object], runs: int, watch: bool) -> Profile:
        given, others = self._divided(feed, False)
        items = self._items(given)
        if items not in self._models:
            sizes = ", ".join(map(str, self._models))
            raise ArgumentError(must("feed", f"of a batch of {sizes}, to be profiled", items))
        return self._models[items]._profile({**given, **others}, runs, watch)


def _measured(models: Mapping[int, Model]) -> dict[int, float]:
    """Time of a run by batch size, on random data."""
    ready = {size: model._ran._programs.last for size, model in models.items()}
    programs = {size: made.executable for size, made in ready.items() if made is not None}
    return timed(programs, limit=1.0, least=3)


def _opened(port: Port) -> Port:
    return replace(port, shape=(_SYMBOL, *(port.shape or ())[1:]))


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    """The rows, with the last one repeated up to a batch of `size`; zeros if there is none."""
    if len(rows) == size:
        return rows
    made = aligned((size, *rows.shape[1:]), rows.dtype)
    made[: len(rows)] = rows
    made[len(rows) :] = rows[-1] if len(rows) else 0
    return made
