"""Reading of modules, exported programs and files of torch.export."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph
from cpuconv.reading.aten import fx_reader
from cpuconv.reading.aten.decomposing import decompose
from cpuconv.reading.aten.emitter import Unsupported
from cpuconv.reading.aten.functional import make_functional
from cpuconv.reading.aten.regions import inline_regions


def read_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Graph:
    """Export a module by `torch.export` and read its graph.

    Raises
    ------
    SourceError
        It cannot be exported, or has operators without an adapter.
    """
    name = type(module).__name__
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its operators are for eager execution alone
    try:
        program = torch.export.export(module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    except Exception as error:  # of any kind: a module is any Python code
        reason = f"{_first_line(error)}{_advice(error)}"
        raise SourceError(f"{name} cannot be exported by torch.export: {reason}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return read_program(program, name)


def read_file(path: str | os.PathLike[str]) -> Graph:
    """Read a `.pt2` file, which `torch.export.save` wrote.

    Raises
    ------
    SourceError
        It is not such a file, or has operators without an adapter.
    """
    try:
        program = torch.export.load(path)
    except Exception as error:  # of any kind, as a file may be damaged anywhere
        reason = _first_line(error)
        raise SourceError(f"{os.fspath(path)} cannot be read by torch.export.load: {reason}") from error
    return read_program(program, os.path.basename(os.fspath(path)))


def read_program(program: ExportedProgram, name: str = "program") -> Graph:
    """Read an exported program; constants share the memory of its parameters.

    Raises
    ------
    SourceError
        It has operators without an adapter, or writes to its inputs or buffers.
    """
    graph = copy.deepcopy(program.graph)
    inline_regions(graph, program.graph_module)
    try:
        changed = make_functional(graph)
    except Unsupported:
        program = program.run_decompositions({})
        graph, changed = copy.deepcopy(program.graph), {}
        inline_regions(graph, program.graph_module)
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
    written = [node.name for node in changed]
    written += [str(spec.target) for spec in program.graph_signature.output_specs if _is_written(spec.kind)]
    if written:
        reason = "a network must not change its inputs or buffers, as layers in training mode do"
        raise SourceError(f"{name} writes to {', '.join(written)}; {reason}: call module.eval().")
    constants: dict[fx.Node, Any] = {}
    inputs: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            value = _constant(program, kinds[node.name]) if node.name in kinds else None
            if value is not None or not isinstance(node.meta.get("val"), (torch.Tensor, torch.SymInt)):
                constants[node] = value
            else:
                inputs[node] = node.name
        elif node.op == "get_attr":
            constants[node] = getattr(program.graph_module, node.target)
    decompose(graph)
    outputs = dict(zip(_output_names(program), _outputs(graph), strict=True))
    made = {label: node for label, node in outputs.items() if isinstance(node, fx.Node)}
    if not made:
        raise SourceError(f"{name} must have an output that is a tensor.")
    taken = {*inputs.values()}
    made = {f"{label}_out" if label in taken else label: node for label, node in made.items()}
    return fx_reader.read(graph, constants, made, name, inputs).graph


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _advice(error: Exception) -> str:
    """Suffix of the message for control flow that depends on elements: how to run such a module."""
    decided = "DataDependent" in type(error).__name__
    return '; torch.compile(module, backend="cpuconv") splits such modules into several graphs' if decided else ""


def _is_written(kind: OutputKind) -> bool:
    return kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def _constant(program: ExportedProgram, spec: Any) -> Any:
    """Tensor of a parameter, buffer or constant; None for an input."""
    if spec.kind == InputKind.USER_INPUT:
        return None
    if spec.target in program.state_dict:
        return program.state_dict[spec.target].detach()
    return program.constants[spec.target]


def _outputs(graph: fx.Graph) -> list[Any]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    (results,) = output.args
    return [*results]


def _output_names(program: ExportedProgram) -> list[str]:
    """Names of the outputs: "output", or their keys and places in the module's result, such as "logits" or "aux_0"."""
    spec = program.call_spec.out_spec
    mutations = sum(_is_written(each.kind) for each in program.graph_signature.output_specs)
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten([*range(spec.num_leaves)], spec))
    names = ["_".join(str(_key(part)) for part in path) for path, _ in paths]
    names = [f"output_{name}" if name[:1].isdigit() else name or "output" for name in names]
    return [*(f"written_{at}" for at in range(mutations)), *names]


def _key(part: Any) -> Any:
    return getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))
