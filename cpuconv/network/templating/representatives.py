"""Representative sizes of a class if a network cannot have the common ones: some axes keep the sizes of an example."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Sizes = tuple[tuple[int, ...], ...]
Axis = tuple[int, int]  # input, axis


def nearest_fitting(usual: Sizes, example: Sizes, fits: Callable[[Sizes], bool]) -> Sizes:
    """The common sizes of a class, except for axes whose sizes the network fixes, such as channels by the weights.

    Axes with equal sizes are first changed together, then individually.

    Parameters
    ----------
    usual : tuple of tuple of int
    example : tuple of tuple of int
        Sizes of the class that the network can have.
    fits : callable
        Whether the network can have given sizes.
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
    """Replace the sizes of some axes by the common ones."""
    made = [[*shape] for shape in sizes]
    for at, axis in axes:
        made[at][axis] = usual[at][axis]
    return tuple(map(tuple, made))
