"""Validation of the arguments of `compile` for `precision="auto"`: tolerance, samples, metric."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, kind_of, must
from cpuconv.graph.ir import Graph

AUTO = "auto"
TOLERANCE = 0.01  # default tolerance, relative RMS error
_KINDS = "a list of feeds, each a dict of arrays by input name, an .npz file or a folder of such"

Feeds = list[Mapping[str, Any]]


def check_left_out(name: str, where: str, value: object) -> None:
    """Check that an argument is not given.

    Raises
    ------
    ArgumentError
        It is given.
    """
    if value is not None:
        raise ArgumentError(must(name, f"left out {where}", "given"))


def tolerance_of(given: object) -> float:
    """Validate a user's tolerance; None gives the default.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is not a finite number above 0.
    """
    if given is None:
        return TOLERANCE
    if isinstance(given, bool) or not hasattr(given, "__float__"):
        raise ArgumentTypeError(must("tolerance", "a number above 0", repr(given)))
    value = float(given)
    if not (math.isfinite(value) and value > 0):
        raise ArgumentError(must("tolerance", "a finite number above 0", repr(given)))
    return value


def check_callable(name: str, given: object, of: str) -> None:
    """Check that an argument, if given, is callable; `of` describes the callable's arguments.

    Raises
    ------
    ArgumentTypeError
        It is not callable.
    """
    if given is not None and not callable(given):
        raise ArgumentTypeError(must(name, f"a callable of {of}, or None", kind_of(given)))


def feeds_of(samples: Any, graph: Graph) -> Feeds:
    """Convert a user's `samples` to a list of feeds; shapes and dtypes are not checked here.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        There are no samples, or they are of another type.
    """
    if samples is None:
        raise ArgumentError(must("samples", f"{_KINDS}, for precision={AUTO!r}", "left out"))
    if isinstance(samples, (str, os.PathLike)):
        feeds = _of_path(Path(samples), graph)
    elif isinstance(samples, (Mapping, np.ndarray)) or not isinstance(samples, Iterable):
        raise ArgumentTypeError(must("samples", _KINDS, kind_of(samples)))
    else:
        feeds = [_feed(at, sample, graph) for at, sample in enumerate(samples)]
    if not feeds:
        raise ArgumentError(must("samples", "one feed or more", "none"))
    return feeds


def _feed(at: int, sample: Any, graph: Graph) -> Mapping[str, Any]:
    """A sample as a dict; for a network of one input, the sample may be the array itself."""
    if isinstance(sample, Mapping):
        return sample
    if len(graph.inputs) != 1:
        names = ", ".join(graph.inputs)
        raise ArgumentTypeError(must(f"samples[{at}]", f"a dict of arrays for {names}", kind_of(sample)))
    return {graph.inputs[0]: sample}


def _of_path(path: Path, graph: Graph) -> Feeds:
    """The feeds of a file, or of all .npz files of a folder in alphabetical order."""
    if path.is_dir():
        return [feed for file in sorted(path.glob("*.npz")) for feed in _of_file(file, graph)]
    return _of_file(path, graph)


def _of_file(path: Path, graph: Graph) -> Feeds:
    """The feed of a file; several feeds, stacked along the first axis, if arrays have one axis more than the inputs."""
    from cpuconv.quantizing.data.samples import feed_of

    feed = feed_of(path, graph.inputs, "samples", "an .npz file that can be read, or a folder of such")
    shapes = {name: graph.value(name).shape for name in graph.inputs}
    stacked = [name for name, shape in shapes.items() if shape is not None and name in feed]
    if not stacked or any(feed[name].ndim != len(shapes[name] or ()) + 1 for name in stacked):
        return [feed]
    counts = {len(feed[name]) for name in feed if feed[name].ndim}
    if len(counts) != 1:
        raise ArgumentError(must("samples", f"the same number of arrays for each input in {path}", str(sorted(counts))))
    return [{name: array[at] for name, array in feed.items()} for at in range(counts.pop())]
