"""ONNX models decoded: from a path, bytes or a message of the package onnx, which is not needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.errors import ArgumentTypeError, SourceError, kind_of, must
from cpuconv.memory.mapped_files import contents
from cpuconv.protos import wire
from cpuconv.protos.messages import ModelProto
from cpuconv.protos.recognising import check_recognised, unreadable
from cpuconv.reading.tensors import Files


@dataclass(frozen=True)
class Metadata:
    """What a model says about itself; empty where it says nothing.

    Attributes
    ----------
    producer_name, graph_name, graph_description, domain, description : str
    version : int
        The largest of 64 bits where the model states none.
    custom_metadata_map : dict[str, str]
        What its author added.
    """

    producer_name: str = ""
    graph_name: str = ""
    graph_description: str = ""
    domain: str = ""
    description: str = ""
    version: int = 2**63 - 1
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any) -> Metadata:
        """What a decoded model says about itself."""
        stated = {entry.key: entry.value for entry in model.metadata_props}
        version = {"version": model.model_version} if model.HasField("model_version") else {}
        graph = model.graph
        return cls(
            model.producer_name, graph.name, graph.doc_string, model.domain, model.doc_string, **version,
            custom_metadata_map=stated,
        )  # fmt: skip


def load(source: object, kind: type[Files]) -> tuple[Any, Files, str]:
    """The model, the files that its constants may lie in, and what messages call it."""
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
    """Whether content is that of an ONNX model."""
    try:
        return bool(wire.decode(content, ModelProto).graph.output)
    except (SourceError, ValueError, TypeError, LookupError):
        return False


def _is_message(source: object) -> bool:
    """Whether it is a model of the package onnx, which is not imported if nobody did."""
    package = sys.modules.get("onnx")
    return package is not None and isinstance(source, package.ModelProto)


def _encoded(model: Any) -> tuple[bytes, str]:
    """The bytes of the package's model, and its name.

    Raises
    ------
    SourceError
        Messages can hold more than their bytes may: two gigabytes.
    """
    name = model.graph.name or "model"
    try:
        return model.SerializeToString(), name
    except Exception as error:  # of protocol buffers, by their version
        raise SourceError(f"{name} must be given as a file, as its message cannot be encoded: {error}") from error
