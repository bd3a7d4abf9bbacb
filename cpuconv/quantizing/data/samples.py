"""Calibration samples: feeds, a folder of arrays or images, or a CalibrationDataReader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, kind_of, must
from cpuconv.graph.ir import Value
from cpuconv.network.ports import Port, fed
from cpuconv.quantizing.data.batches import batch_of, batches, concatenated, of_any_batch, rows_of
from cpuconv.quantizing.data.images import IMAGES, ImageForm, image_reader

Feed = dict[str, np.ndarray]
_KINDS = "an iterable of feeds, a folder of .npz files or images, or an object with get_next()"


class Samples:
    """Feeds that can be iterated repeatedly; files are read each time, other feeds stay in memory.

    Parameters
    ----------
    ports : sequence of Port
        The network's inputs.
    items : sequence
        Sources of the samples.
    make : callable
        Makes the feed of an item: a dict, or one array.
    """

    def __init__(self, ports: Sequence[Port], items: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self._ports, self._items, self._make = tuple(ports), items, make

    def first(self, count: int) -> Samples:
        """The first `count` samples."""
        return Samples(self._ports, self._items[:count], self._make)

    def half(self, first: int) -> Samples:
        """Every second sample, from the first (0) or the second (1) on."""
        return Samples(self._ports, self._items[first::2], self._make)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Feed]:
        return map(self._feed, range(len(self)))

    def in_batches(self, rows: int | None = None) -> Samples:
        """These samples, concatenated and split if the network has a fixed batch that one does not fill.

        `rows` is the number of rows of every item, if known.
        """
        size = batch_of(self._ports)
        if size is None or size == rows:
            return self
        loose = Samples(of_any_batch(self._ports), self._items, self._make)
        counts = [loose._rows(at) if rows is None else rows for at in range(len(self))]
        return self if {*counts} == {size} else Samples(self._ports, batches(counts, size), concatenated(loose._feed))

    def _rows(self, at: int) -> int:
        feed = self._feed(at)
        with self._naming(at):
            return rows_of(feed)

    def _feed(self, at: int) -> Feed:
        feed = self._named(self._make(self._items[at]))
        with self._naming(at):
            return _checked(self._ports, feed)

    @contextmanager
    def _naming(self, at: int) -> Iterator[None]:
        """Prefix errors with the sample's name."""
        try:
            yield
        except (ArgumentError, ArgumentTypeError) as error:
            item = self._items[at]
            raise type(error)(f"{item if isinstance(item, Path) else f'data[{at}]'}: {error}") from error

    def _named(self, feed: Any) -> Mapping[str, Any]:
        """Arrays by input name."""
        if isinstance(feed, Mapping):
            return feed
        if len(self._ports) != 1:
            names = ", ".join(port.name for port in self._ports)
            raise ArgumentError(must("data", f"of dicts with arrays for {names}", kind_of(feed)))
        return {self._ports[0].name: feed}


def _checked(ports: Sequence[Port], given: Mapping[str, Any]) -> Feed:
    feed = {port.name: array for port, array in zip(ports, fed(ports, given), strict=True)}
    for port in ports:
        value, shape = Value(port.shape, port.dtype), feed[port.name].shape
        if not value.fits(shape):
            raise ArgumentError(must(f"feed[{port.name!r}]", f"of a shape that fits {value}", shape))
    return feed


def samples_of(data: Any, ports: Sequence[Port], form: ImageForm) -> Samples:
    """Convert a user's `data` to samples.

    Parameters
    ----------
    data : iterable, path or object with get_next()
        Feeds, each a dict of arrays by input name, or an array for a network with one input; a folder of .npz files,
        one sample each, or of images; or a `CalibrationDataReader` of `onnxruntime.quantization`.
    ports : sequence of Port
        The network's inputs, including image sizes.
    form : ImageForm
        Normalisation of images.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `data` is none of these, is empty, or does not fit the inputs.
    """
    if isinstance(data, (str, os.PathLike)):
        return _of_folder(Path(data), ports, form)
    if isinstance(data, (Mapping, np.ndarray)):  # one sample: its parts would be taken for samples
        raise ArgumentTypeError(must("data", _KINDS, kind_of(data)))
    if hasattr(data, "get_next"):
        items = list(iter(data.get_next, None))
    elif isinstance(data, Iterable):
        items = list(data)
    else:
        raise ArgumentTypeError(must("data", _KINDS, kind_of(data)))
    if not items:
        raise ArgumentError(must("data", "one sample or more", "none"))
    return Samples(ports, items, lambda feed: feed).in_batches()


def _of_folder(folder: Path, ports: Sequence[Port], form: ImageForm) -> Samples:
    if not folder.is_dir():
        raise ArgumentError(must("data", "a folder of .npz files or images", repr(str(folder))))
    files = sorted(path for path in folder.iterdir() if path.is_file())
    arrays = [path for path in files if path.suffix.lower() == ".npz"]
    images = [path for path in files if path.suffix.lower() in IMAGES]
    if bool(arrays) == bool(images):
        held = "one of both" if arrays else "one of other files" if files else "an empty one"
        raise ArgumentError(must("data", f"a folder of .npz files, or of images ({', '.join(IMAGES)})", held))
    if images:
        return Samples(ports, images, image_reader(ports, form)).in_batches(rows=1)
    names = [port.name for port in ports]
    return Samples(
        ports, arrays, lambda path: feed_of(path, names, "data", "files of arrays that can be read")
    ).in_batches()


def feed_of(path: Path, names: Sequence[str], argument: str, wanted: str) -> dict[str, Any]:
    """Read the arrays of an .npz file by name; the array of a network with one input may have any name.

    Raises
    ------
    ArgumentError
        The file cannot be read. The message says that `argument` must be `wanted`.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            feed = {name: file[name] for name in file.files}
    except Exception as error:  # NumPy raises many types for files that are not archives
        raise ArgumentError(must(argument, wanted, f"{str(path)!r} ({error})")) from error
    return dict(zip(names, feed.values(), strict=True)) if len(feed) == len(names) == 1 else feed
