"""Sources of networks: files and objects that graphs are read from, again where a graph is not kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from cpuconv.api.pickling import identity
from cpuconv.errors import ArgumentTypeError, SourceError, kind_of, must
from cpuconv.graph.ir import Graph

EXPORTED = ".pt2"  # extension of files of torch.export


def again(source: object, graph: Graph) -> Callable[[], Graph]:
    """Return a function that gives the graph of a source: from memory, or by reading the file again."""
    if not isinstance(source, (str, os.PathLike)):
        return lambda: graph
    path = os.path.abspath(source)
    known = identity(path)

    def unchanged() -> Graph:
        if identity(path) != known:
            raise SourceError(
                f"{path} must be as it was when the model was compiled, for the model to be saved or to"
                " take other arrays for its initializers."
            )
        return read(path)

    return unchanged


def read(source: Any) -> Graph:
    """Read a model of ONNX, or an exported program of PyTorch."""
    if isinstance(source, (str, os.PathLike)) and os.fspath(source).endswith(EXPORTED):
        from cpuconv.reading.aten.exported import read_file  # deferred: it imports torch

        return read_file(source)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, (torch.nn.Module, torch.export.ExportedProgram)):
        wanted = "an ONNX model; cpuconv.from_torch(module, example_inputs) compiles modules"
        raise ArgumentTypeError(must("source", wanted, kind_of(source)))
    from cpuconv.reading import onnx_reader

    return onnx_reader.read(source)
