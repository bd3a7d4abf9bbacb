"""Public call that prepares a module of PyTorch to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpuconv.api.network import compile
from cpuconv.errors import ArgumentTypeError, kind_of, must

if TYPE_CHECKING:
    import torch

    from cpuconv.network.model import Model


def from_torch(
    source: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    **options: Any,
) -> Model:
    """Prepare a module of PyTorch to run: export it by `torch.export`, read its graph, and compile that.

    Parameters
    ----------
    source : torch.nn.Module or torch.export.ExportedProgram
        A module in evaluation mode, or what `torch.export.export` made of one.
    example_inputs : sequence
        Positional arguments of the module's call, which give the sizes and dtypes of its inputs; not for a program.
    example_kwargs : mapping of str or None
        Arguments by name.
    dynamic_shapes : dict, tuple or None
        Axes whose sizes are open, as for `torch.export.export`: ``{"x": {0: torch.export.Dim("batch")}}``.
    options : keyword arguments
        As for `compile`: `threads`, `precision`, `strategy`, `accuracy` and the others.

    Returns
    -------
    Model
        Its inputs have the names of the module's arguments. One output is called "output"; others have the keys of the
        module's result, or their places: "output_0". The model shares the memory of parameters that it need not pack;
        do not change these while it is used.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type.
    SourceError
        The module cannot be exported, changes its inputs or buffers, is in training mode, or has operators that cannot
        be read; the message has all of them.
    """
    import torch  # deferred: an optional dependency

    from cpuconv.reading.aten.exported import read_module, read_program

    if isinstance(source, torch.export.ExportedProgram):
        return compile(read_program(source), **options)
    if not isinstance(source, torch.nn.Module):
        raise ArgumentTypeError(must("source", "a torch.nn.Module or an ExportedProgram", kind_of(source)))
    if isinstance(example_inputs, torch.Tensor):
        wanted = "a sequence of arguments, such as (x,)"
        raise ArgumentTypeError(must("example_inputs", wanted, "one tensor"))
    with torch.no_grad():
        return compile(read_module(source, example_inputs, example_kwargs, dynamic_shapes), **options)
