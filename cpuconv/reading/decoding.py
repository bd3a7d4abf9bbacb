"""Decoding of ONNX models: paths, bytes, or messages of the package onnx, which is optional."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.errors import ArgumentTypeError, SourceError, kind_of, must
from cpuconv.memory.mapped_files import contents
from cpuconv.protos import wire
from cpuconv.protos.messages import ModelProto
from cpuconv.protos.recognising import check_recognised, unreadable
from cpuconv.reading.tensors import Files


@dataclass(frozen=True)
class Metadata:
    """Metadata of a model; empty where the model states none.

    Attributes
    ----------
    producer_name, graph_name, graph_description, domain, description : str
    version : int
        2**63 - 1 if the model states none.
    custom_metadata_map : dict[str, str]
        The author's own entries.
    symbols : dict[str, tuple[str, ...]]
        Symbols of the sizes of each input and output as the model has them, "" for other sizes.
    """

    producer_name: str = ""
    graph_name: str = ""
    graph_description: str = ""
    domain: str = ""
    description: str = ""
    version: int = 2**63 - 1
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)
    symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any) -> Metadata:
        """Extract the metadata of a decoded model."""
        stated = {entry.key: entry.value for entry in model.metadata_props}
        version = {"version": model.model_version} if model.HasField("model_version") else {}
        graph = model.graph
        ends = (*graph.output, *graph.input)
        symbols = {end.name: tuple(dim.dim_param for dim in end.type.tensor_type.shape.dim) for end in ends}
        return cls(
            model.producer_name, graph.name, graph.doc_string, model.domain, model.doc_string, **version,
            custom_metadata_map=stated, symbols=symbols,
        )  # fmt: skip


def load(source: object, kind: type[Files]) -> tuple[Any, Files, str]:
    """Decode a model; return it, its external files, and its name for messages."""
    folder, name = None, "model"
    data: bytes | memoryview
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        folder, name = path.parent, path.stem
        try:
            data = contents(path)
        except OSError as error:
            raise unreadable(path, "an ONNX file", error) from error
    elif isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    elif _is_message(source):
        data, name = _encoded(source)
    else:
        raise ArgumentTypeError(must("source", "a path, bytes or an onnx.ModelProto", kind_of(source)))
    check_recognised(data, name if folder is None else f"Source {str(source)!r}")
    try:
        return wire.decode(data, ModelProto), kind(folder), name
    except wire.DamagedError as error:
        raise SourceError(f"{name} must be a whole ONNX model; its bytes cannot be decoded: {error}.") from error
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from error


def is_model(content: bytes | memoryview) -> bool:
    """Whether content is an ONNX model."""
    try:
        return bool(wire.decode(content, ModelProto).graph.output)
    except (SourceError, ValueError, TypeError, LookupError):
        return False


def _is_message(source: object) -> bool:
    """Whether `source` is a model of the package onnx; does not import the package."""
    package = sys.modules.get("onnx")
    return package is not None and isinstance(source, package.ModelProto)


def _encoded(model: Any) -> tuple[bytes, str]:
    """Encode a message of the package onnx; return its bytes and its name.

    Raises
    ------
    SourceError
        The message exceeds the limit of two gigabytes.
    """
    name = model.graph.name or "model"
    try:
        return model.SerializeToString(), name
    except Exception as error:  # protobuf errors, which depend on its version
        raise SourceError(f"{name} must be given as a file, as its message cannot be encoded: {error}") from error
