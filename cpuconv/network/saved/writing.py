"""Writing of saved models.

A network of fixed sizes is stored as its one program: rewritten, and cut where sizes depend on data. A network of open
sizes is stored as it was read, with the programs of the sizes that ran. All raw weights are included, so that another
CPU or other sizes can be planned for; packed weights are those that the programs read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cpuconv.graph.ir import Graph, Value
from cpuconv.network.saved import kernels
from cpuconv.network.saved.container import Blocks
from cpuconv.network.saved.encoding import graph_to_plain, value_to_plain
from cpuconv.network.saved.program import SavedProgram, Settings, here


def model_header(
    blocks: Blocks,
    ends: tuple[str, Mapping[str, Value], Mapping[str, Value], Sequence[str]],
    graph: Graph | None,
    settings: Settings,
    programs: Iterable[SavedProgram],
    packed: Callable[[np.ndarray], Mapping[str, np.ndarray]],
) -> dict[str, Any]:
    """Return the header that describes a model, and add its arrays to the blocks of the file.

    Parameters
    ----------
    blocks : Blocks
    ends : (str, mapping of str to Value, mapping of str to Value, sequence of str)
        Name of the network, its inputs and outputs, and the names of its outputs as the model lists them.
    graph : Graph or None
        The network as it was read; None if all sizes are fixed and there are no defaults.
    settings : Settings
    programs : iterable of SavedProgram
    packed : callable
        Returns the packed forms of a constant, by `form_digest`.

    Raises
    ------
    SourceError
        The network has a part that cannot be saved.
    """
    kept: dict[tuple[int, str], int] = {}  # packed blocks by raw block and form

    def keep(array: np.ndarray) -> int:
        number = blocks.add(array)
        for digest, made in packed(array).items() if number >= 0 else ():
            kept[number, digest] = blocks.add(made)
        return number

    name, inputs, outputs, order = ends
    written = [_program_to_plain(program, keep) for program in programs]
    header: dict[str, Any] = {
        "name": name,
        "inputs": {each: value_to_plain(value) for each, value in inputs.items()},
        "outputs": {each: value_to_plain(value) for each, value in outputs.items()},
        "settings": {
            "threads": settings.threads,
            "strategy": settings.strategy,
            "limits": asdict(settings.limits),
            "strict": settings.rewriting.strict,
            "skip_passes": list(settings.rewriting.skip_passes),
            "precision": settings.precision,
            "node_precisions": {**settings.node_precisions},
        },
        "made": here(),
        "graph": graph and graph_to_plain(graph, blocks.add),
        "programs": written,
        "packed": [[*key, block] for key, block in kept.items()],
    }
    if len(order) > len(outputs):
        header["order"] = list(order)
    return header


def write(
    path: Path,
    blocks: Blocks,
    header: dict[str, Any],
    names: Iterable[str] | None = None,
    images: Mapping[str, Any] | None = None,
) -> None:
    """Write a model.

    Parameters
    ----------
    path : Path
    blocks : Blocks
    header : dict
        As `model_header` returned it.
    names : iterable of str or None
        Names of the kernels whose machine code is included.
    images : mapping of str to [dict, list or None], or None
        Plain values of the inputs that take pictures, by name.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    if images:
        header["images"] = dict(images)
    if names is not None:
        header["kernels"] = {"made": kernels.here(), "block": blocks.add(kernels.packed(names))}
    blocks.write(path, header)


def _program_to_plain(program: SavedProgram, keep: Callable[[np.ndarray], int]) -> dict[str, Any]:
    graph, notes, suffix = program.prepared
    return {
        "shapes": [list(sizes) for sizes in program.shapes],
        "graph": graph_to_plain(graph.live(), keep),
        "tail": suffix and graph_to_plain(suffix, keep),
        "notes": [[note.rewrite, note.old, note.new] for note in notes],
        "chosen": program.decisions.to_dict(),
    }
