"""What is fuzzed: the readers of what others wrote, with files to begin with and ways to change them.

A target gets any bytes, and raises nothing but the errors of its reader. Seeds are made here, so that none is kept.
"""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from autotune.store.rows import Row
from autotune.wisdom import document as wisdom
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.target import Target as Machine
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import OWN
from cpuconv.isa import current
from cpuconv.network.saved import container
from cpuconv.network.saved.program import SavedProgram, Settings
from cpuconv.network.saved.reading import Saved
from cpuconv.network.saved.writing import Blocks, model_header, write
from cpuconv.network.selection.layout import lay_out
from cpuconv.network.sizes.prepared import Rewriting, prepared
from cpuconv.network.sizes.shape_inputs import shape_inputs
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading import sources
from cpuconv.reading.onnx_reader import read
from support import graphs
from support.damage import operands
from support.damage.damageable import damageable, looping, nested
from support.damage.mutations import forged, header_of, with_header
from support.damage.onnx_mutations import mutated
from support.graph.cases import CASES, drawn
from support.tuner import fuzz as wisdom_fuzz

ERRORS = (SourceError, ArgumentError, ArgumentTypeError)
_LONGEST = 1 << 15  # bytes of a seed
_CASES = 2  # of each operator
_MACHINE = Machine(current(), 1, "heuristic")
_RUNNABLE = 1e6  # elements of inputs that a network is laid out for


class Target(NamedTuple):
    """A reader.

    Attributes
    ----------
    read : callable
        Gives the bytes to it; raises what is a fault.
    seeds : callable
        Files to begin with.
    change : callable
        A file with something else in it, as the format allows: checksums are right.
    """

    read: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    change: Callable[[bytes, int], bytes]


# --- ONNX -----------------------------------------------------------------------------------------------------------


def _sizes(value: Value) -> tuple[int, ...]:
    """Of an input; those that are open are 2."""
    return tuple(size if isinstance(size, int) else 2 for size in value.shape or ())


def _laid_out(graph: Graph) -> None:
    """A graph as far as it goes without kernels."""
    if shape_inputs(graph):
        return
    shapes = {name: _sizes(graph.value(name)) for name in graph.inputs}
    if sum(math.prod(shape) for shape in shapes.values()) <= _RUNNABLE:
        lay_out(prepared(graph, shapes, Rewriting()).graph, _MACHINE)


def read_onnx(data: bytes) -> None:
    """Read, rewrite, and lay out a model."""
    try:
        _laid_out(read(data))
    except ERRORS as error:
        assert len(str(error)) > 20


def networks() -> list[onnx.ModelProto]:
    """Convolutions, computed shapes of open sizes, branches in branches, a loop that is folded and one that is fed."""
    first, second = damageable()
    (mean,) = (node for node in second.graph.node if node.op_type == "ReduceMean")
    mean.attribute.append(helper.make_attribute("keepdims", 0))
    loop = looping("Add", 2, m=np.int64(5))
    del loop.graph.initializer[[tensor.name for tensor in loop.graph.initializer].index("m")]
    loop.graph.input.append(helper.make_tensor_value_info("m", onnx.TensorProto.INT64, []))
    return [first, second, nested(2), looping("Add", 2, m=np.int64(5)), loop]


def onnx_seeds() -> Iterator[bytes]:
    """Networks, and each operator a few times, with constants and without."""
    yield from (model.SerializeToString() for model in networks())
    for name in sorted(CASES.keys() - OWN):
        for number, case in enumerate(drawn(CASES[name], _CASES)):
            fixed = range(1, len(case.arrays)) if number % 2 else ()
            made, _ = graphs.one_node(name, case.arrays, case.outputs, fixed=fixed, **case.attributes)
            yield made.SerializeToString()


def change_onnx(data: bytes, number: int) -> bytes:
    """Nodes, attributes, names and constants changed; what is no model stays."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        return mutated(np.random.default_rng(number), model, damageable()[number % 2])
    except Exception:  # whatever helpers of ONNX say of a model that is damaged already
        return data


# --- saved models ---------------------------------------------------------------------------------------------------


def read_saved(data: bytes) -> None:
    """Load a model as far as it goes without kernels."""
    path = Path(tempfile.gettempdir(), f"fuzz-{os.getpid()}.cpuconv")
    try:
        path.write_bytes(data)
        saved = Saved(path)
        with saved.built():
            for shapes in saved.shapes:
                program = saved.program(shapes)
                assert program is not None
                lay_out(program.prepared.graph, _MACHINE, program.decisions)
            saved.check_graph()
            _laid_out(saved.graph) if not saved.shapes else None
    except ERRORS as error:
        assert path.name in str(error) and len(str(error)) < 4096
    finally:
        path.unlink(missing_ok=True)


def saved_seeds() -> Iterator[bytes]:
    """Networks of fixed and of open sizes, and such with operators for the evaluator."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.cpuconv")
        for model in networks():
            _save(read(model), path)
            yield path.read_bytes()


def _save(graph: Graph, path: Path) -> None:
    """Write a network without making its kernels."""
    shapes = {name: _sizes(graph.value(name)) for name in graph.inputs}
    made = prepared(graph, shapes, Rewriting())
    decisions = lay_out(made.graph, _MACHINE).decisions()
    program = SavedProgram(tuple(shapes.values()), made, decisions)
    known = {name: Value(shape, graph.value(name).dtype) for name, shape in shapes.items()}
    is_fixed = all(graph.value(name).concrete for name in graph.inputs)
    ends = known if is_fixed else {name: graph.value(name) for name in graph.inputs}
    outputs = {name: made.graph.value(name) if is_fixed else graph.value(name) for name in graph.outputs}
    options = Settings(1, "heuristic", Limits(), Rewriting())
    named, blocks = (graph.name, ends, outputs, graph.outputs), Blocks()
    header = model_header(blocks, named, None if is_fixed else graph, options, [program], lambda _: {})
    write(path, blocks, header)


def change_saved(data: bytes, number: int) -> bytes:
    """A header that says something else, or the same after changes elsewhere, with its checksum."""
    try:
        return with_header(data, header_of(data)) if number % 4 == 0 else forged(data, random.Random(number))
    except Exception:  # it has no header any more
        return _signed(data)


def _signed(data: bytes) -> bytes:
    """The file with the checksum of what is where its header should be."""
    if len(data) < container.START:
        return data
    size = min(container.PREFIX.unpack_from(data)[2], len(data) - container.START)
    prefix = container.PREFIX.pack(container.MAGIC, container.FORMAT, size, len(data))
    text = data[container.START : container.START + size]
    return prefix + container.digest(prefix, text) + data[container.START :]


# --- wisdom ---------------------------------------------------------------------------------------------------------


def read_wisdom(data: bytes) -> None:
    """Read wisdom, and write what was read."""
    try:
        found = wisdom.parse(data)
    except wisdom.WisdomError as error:
        assert str(error)
        return
    assert all(row.is_sound() and row.device in found.devices for row in found)
    wisdom.parse(wisdom.render(found).encode())


def wisdom_seeds() -> Iterator[bytes]:
    """A file of two devices."""
    from autotune.machine.device import fingerprint

    here = fingerprint()
    told = wisdom.Wisdom({here.key: here}, {here.key: {"1": {"float32_gflops": 122.5, "measured": 1e9}}})
    rows = [
        Row(here.key, "p", "direct(v=2)", "s", "ok", median=1e-3, score=1e-3),
        Row(here.key, "p", "x", "s", "rejected"),
    ]
    told.add(rows)
    told.finished.append(wisdom.Finished(here.key, "p", "cold", "quick", "s", 1, 1e9))
    told.uses.append(wisdom.Use("net", 1, "auto", "first", "p", 2, 1e9))
    yield wisdom.render(told).encode()
    yield wisdom.render(wisdom.Wisdom()).encode()


def change_wisdom(data: bytes, number: int) -> bytes:
    """A value, name or place changed, with the right checksum."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return wisdom_fuzz.signed(wisdom_fuzz.mutated(told, random.Random(number)))


# --- problem strings ------------------------------------------------------------------------------------------------


def read_problem(data: bytes) -> None:
    """Parse a string, and a list of them."""
    text = data.decode("utf-8", "replace")
    try:
        problem = ConvProblem.parse(text)
        assert ConvProblem.parse(problem.key) == problem
    except (ArgumentError, ArgumentTypeError) as error:
        assert str(error)
    path = Path(tempfile.gettempdir(), f"fuzz-{os.getpid()}.txt")
    path.write_bytes(data)
    try:
        sources.load(path)
    except SourceError as error:
        assert str(error)
    finally:
        path.unlink()


def problem_seeds() -> Iterator[bytes]:
    """Strings of several kinds."""
    lines = (
        "mb1ic64ih56oc64oh56kh3ph1",
        'g32mb2ic32ih112iw100oc32oh56ow50kh3kw5sh2sw2ph1pw2dh0dw1n"net:first*3"  # a comment',
        "mb1ic3ih224oc64oh112kh7sh2ph3 in=NCHW out=NHWC act=relu res=1 threads=2",
        "ic8ih9oc8kh3 in=NCHW16c out=NCHW8c act=clip(0,6) res=0 threads=1",
    )
    yield from (line.encode() for line in lines)
    yield "\n".join(lines).encode()


def change_problem(data: bytes, number: int) -> bytes:
    """A number in it, or a word, becomes another."""
    rng, words = random.Random(number), data.decode("utf-8", "replace").split(" ")
    at = rng.randrange(len(words))
    digits = [place for place, character in enumerate(words[at]) if character.isdigit()]
    if digits and rng.random() < 0.7:
        place = rng.choice(digits)
        words[at] = words[at][:place] + str(rng.choice((0, 1, 7, 2**31, 10**20, -1))) + words[at][place + 1 :]
    else:
        words[at] = rng.choice(("act=elu(1)", "res=1", "threads=0", "in=NHWC", "out=", 'n"', "g0", "mb", words[at] * 2))
    return " ".join(words).encode()


TARGETS: Mapping[str, Target] = {
    "onnx": Target(read_onnx, onnx_seeds, change_onnx),
    "saved": Target(read_saved, saved_seeds, change_saved),
    "wisdom": Target(read_wisdom, wisdom_seeds, change_wisdom),
    "problem": Target(read_problem, problem_seeds, change_problem),
    "operands": Target(operands.read, operands.seeds, operands.change),
}


def make_corpus(name: str, folder: Path) -> int:
    """Write a target's seeds to a folder; gives their number."""
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seeds = [each for each in TARGETS[name].seeds() if len(each) <= _LONGEST]
    for number, content in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(content)
    return len(seeds)
