"""Sizes that represent a class where a network cannot have the usual ones: some axes keep the sizes of an example."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Sizes = tuple[tuple[int, ...], ...]
Axis = tuple[int, int]  # input, axis


def nearest_fitting(usual: Sizes, example: Sizes, fits: Callable[[Sizes], bool]) -> Sizes:
    """The usual sizes of a class, but of the axes that the network states in some other way, as weights state channels.

    Axes of equal sizes are first taken to be of the same size always, then each is tried by itself.

    Parameters
    ----------
    usual : tuple of tuple of int
    example : tuple of tuple of int
        Sizes of the class that the network can have.
    fits : callable
        Whether the network can have some sizes.
    """
    if fits(usual):
        return usual
    groups: dict[int, list[Axis]] = {}
    for at, (shape, other) in enumerate(zip(example, usual, strict=True)):
        for axis, (size, wanted) in enumerate(zip(shape, other, strict=True)):
            if size != wanted:
                groups.setdefault(size, []).append((at, axis))
    made = example
    for axes in groups.values():
        moved = _moved(made, usual, axes)
        if fits(moved):
            made = moved
        elif len(axes) > 1:
            for each in axes:
                moved = _moved(made, usual, [each])
                made = moved if fits(moved) else made
    return made


def _moved(sizes: Sizes, usual: Sizes, axes: Iterable[Axis]) -> Sizes:
    """Sizes of which those of some axes are the usual ones."""
    made = [[*shape] for shape in sizes]
    for at, axis in axes:
        made[at][axis] = usual[at][axis]
    return tuple(map(tuple, made))
