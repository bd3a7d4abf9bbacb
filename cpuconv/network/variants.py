"""Models of a network for variants of a run: with the branches that If nodes take, or with defaults as inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import Lock
from cpuconv.graph.ir import Graph
from cpuconv.network.definition import Definition
from cpuconv.network.sizes.conditions import Conditions, with_branches

M = TypeVar("M")  # a model
_MAX_MODELS = 8  # combinations of conditions with a model each; the least recently used is dropped


@dataclass(frozen=True)
class Opened(Generic[M]):
    """A model in which some defaults of another one are inputs, and their default arrays."""

    model: M
    arrays: Mapping[str, np.ndarray]


class DefaultModels(Generic[M]):
    """The model in which all defaults that were ever fed are inputs.

    Parameters
    ----------
    names : collection of str
        The defaults.
    make : callable
        Compiles the model in which the given defaults are inputs.

    Attributes
    ----------
    make : callable
        The same.
    """

    def __init__(self, names: Collection[str], make: Callable[[Collection[str]], Opened[M]]) -> None:
        self._names, self.make = names, make
        self._opened: Opened[M] | None = None
        self._opening = Lock(brief=False)

    def find(self, feed: Mapping[str, Any]) -> Opened[M] | None:
        """The model in which the defaults in the feed are inputs; None if it has none of them."""
        names = {name for name in self._names if name in feed} if isinstance(feed, Mapping) else set()
        if not names:
            return None
        opened = self._opened
        if opened is None or not names <= opened.arrays.keys():
            with self._opening:
                opened = self._opened
                if opened is None or not names <= opened.arrays.keys():
                    opened = self._opened = self.make(names.union(opened.arrays if opened else ()))
        return opened


class BranchModels(Generic[M]):
    """The models for each combination of conditions; several threads may request them concurrently.

    A run with the same elements of the inputs that decide conditions costs one comparison.

    Parameters
    ----------
    conditions : Conditions
    places : sequence of int
        Indices of the conditions' inputs among those of the network.
    whole : callable
        Returns the graph with its If nodes.
    make : callable
        Makes the model of a graph.

    Attributes
    ----------
    last : Model or None
        The most recently requested model.
    """

    def __init__(
        self, conditions: Conditions, places: Sequence[int], whole: Callable[[], Graph], make: Callable[[Graph], M]
    ) -> None:
        self._conditions, self._places, self._whole, self._make = conditions, places, whole, make
        self._models: dict[tuple[bytes, ...], M] = {}
        self._last: tuple[list[bytes], M] | None = None
        self._making = Lock(brief=False)

    @classmethod
    def of(cls, definition: Definition, make: Callable[[Graph], M]) -> BranchModels[M] | None:
        """Those of a network; None if inputs decide no branches."""
        conditions, names = definition.conditions, [*definition.inputs]
        if conditions is None:
            return None
        return cls(conditions, [names.index(name) for name in conditions.graph.inputs], definition.whole, make)

    @property
    def last(self) -> M | None:
        """The most recently requested model."""
        return None if self._last is None else self._last[1]

    @property
    def made(self) -> list[M]:
        """All models."""
        return list(self._models.values())

    def find(self, arrays: Sequence[np.ndarray]) -> M:
        """The model for arrays of all inputs of the network.

        Raises
        ------
        SourceError
            A condition is not one bool.
        """
        elements = [arrays[at].tobytes() for at in self._places]
        last = self._last
        if last is not None and last[0] == elements:
            return last[1]
        conditions = self._conditions.computed([arrays[at] for at in self._places])
        key = tuple([array.tobytes() for array in conditions.values()])
        with self._making:
            model = self._models.pop(key, None)
            if model is None:
                if len(self._models) == _MAX_MODELS:
                    del self._models[next(iter(self._models))]
                model = self._make(with_branches(self._whole(), conditions))
            self._models[key] = model
        self._last = elements, model
        return model
