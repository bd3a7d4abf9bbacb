"""Compare operators other than convolutions with other engines, each as a network: `python -m bench.operators`.

The operators are recurrent layers of text recognisers, matrix multiplications at batch 1, the multiplications and
softmaxes of attention, and those of `bench.chains`. They are timed and checked as in `bench.models`. With --dynamic,
operators with weights run with dynamic quantisation, and are compared with cpuconv in float32, too.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from bench.chains import chains, made
from bench.models import counts, notes, raced, settings, table
from bench.models import parser as models_parser
from bench.networks import Network, Shapes
from bench.networks.model import save
from bench.networks.problem import NetworkProblem, keep, problems
from bench.networks.quantized import WEIGHTS, dynamic

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LAYERS = (  # operator, steps, sequences, inputs, hidden units, directions
    ("LSTM", 24, 1, 512, 256, 2),
    ("LSTM", 80, 1, 288, 48, 2),
    ("LSTM", 320, 1, 64, 96, 2),
    ("LSTM", 80, 8, 256, 256, 2),
    ("LSTM", 32, 1, 512, 512, 2),
    ("LSTM", 50, 1, 128, 128, 1),
    ("LSTM", 50, 3, 100, 75, 2),
    ("GRU", 80, 1, 256, 192, 2),
    ("GRU", 80, 4, 256, 192, 2),
    ("RNN", 80, 1, 256, 256, 2),
)
_LINEAR = ((1, 25088, 4096), (1, 4096, 4096), (1, 4096, 1000), (1, 2048, 1000), (1, 1280, 1000), (8, 2048, 1000))
_PRODUCTS = (
    ((8, 197, 64), (8, 64, 197)),
    ((8, 197, 197), (8, 197, 64)),
    ((1, 12, 40, 40), (1, 12, 40, 15)),
    ((1, 8, 40, 15), (1, 8, 15, 40)),
    ((12, 49, 32), (12, 32, 49)),
    ((1, 1, 1024), (1, 1024, 1024)),
    ((1, 1024, 1024), (1, 1024, 1)),
)
_ROWS = ((1, 8, 197, 197), (1, 8, 40, 40), (1, 40, 6625), (3136, 96), (197, 768))


def operators() -> Iterator[Network]:
    """Yield networks of one or a few operators."""
    for op, steps, batch, size, hidden, directions in _LAYERS:
        name = f"{op} {steps}x{batch}x{size} to {directions}x{hidden}"
        yield Network(name, {"x": (steps, batch, size)}, partial(_layer, op, hidden, directions), {})
    for rows, depth, columns in _LINEAR:
        yield Network(f"Gemm {rows}x{depth} to {columns}", {"x": (rows, depth)}, partial(_linear, columns), {})
    for a, b in _PRODUCTS:
        yield Network(f"MatMul {_by(a)} {_by(b)}", {"a": a, "b": b}, partial(_model, "MatMul", {}), {})
    for shape in _ROWS:
        yield Network(f"Softmax {_by(shape)}", {"x": shape}, partial(_model, "Softmax", {}, axis=-1), {})
        scale = {"scale": (shape[-1],), "bias": (shape[-1],)}
        yield Network(f"LayerNorm {_by(shape)}", {"x": shape}, partial(_model, "LayerNormalization", scale), {})
    yield Network("Gelu 3136x384", {"x": (3136, 384)}, _gelu, {})
    yield from chains()


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _layer(op: str, hidden: int, directions: int, inputs: Shapes) -> onnx.ModelProto:
    rows, size = _GATES[op] * hidden, inputs["x"][-1]
    weights = {"w": (directions, rows, size), "r": (directions, rows, hidden), "b": (directions, 2 * rows)}
    after = {"linear_before_reset": 1} if op == "GRU" else {}
    direction = "bidirectional" if directions > 1 else "forward"
    return _model(op, weights, inputs, hidden_size=hidden, direction=direction, **after)


def _linear(columns: int, inputs: Shapes) -> onnx.ModelProto:
    return _model("Gemm", {"w": (columns, inputs["x"][-1]), "b": (columns,)}, inputs, transB=1)


def _gelu(inputs: Shapes) -> onnx.ModelProto:
    """Make the model x (1 + erf(x / sqrt 2)) / 2, as exporters write GELU."""
    numbers = {"root": math.sqrt(0.5), "one": 1.0, "half": 0.5}
    lines = ("Mul x root a", "Erf a b", "Add b one c", "Mul x c d", "Mul d half y")
    nodes = [helper.make_node(op, names, [result]) for op, *names, result in map(str.split, lines)]
    return made(nodes, {name: np.array(number, np.float32) for name, number in numbers.items()}, inputs)


def _model(op: str, weights: Shapes, inputs: Shapes, **attributes: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    drawn = {
        name: (rng.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32) for name, shape in weights.items()
    }
    return made([helper.make_node(op, [*inputs, *weights], ["y"], **attributes)], drawn, inputs)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each number of threads; return 1 if nothing was measured."""
    p = argparse.ArgumentParser(prog="bench.operators", description=__doc__)
    p.add_argument("names", nargs="*", default=["*"], metavar="PATTERN", help="patterns of names, as 'LSTM*' (all)")
    p.add_argument("--threads", type=counts, default=(1,), help="threads of each engine, as 1,2 (1)")
    p.add_argument("--dynamic", choices=WEIGHTS, help="dynamic quantisation, with weights of int8 or uint8")
    p.add_argument("--peers", default="onnxruntime,openvino", help="comma-separated (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="timings of each engine (%(default)s)")
    p.add_argument("--seconds", type=float, default=0.05, help="seconds per timing (%(default)s)")
    args = p.parse_args(argv)
    chosen = {each.name: each for each in operators() if any(fnmatch(each.name, name) for name in args.names)}
    if not chosen:
        raise SystemExit("No operator has such a name.")
    words = ["--peers", args.peers, "--rounds", str(args.rounds), "--seconds", str(args.seconds)]
    words += ["--precision", "int8" if args.dynamic else "float32"]
    code = 0
    with tempfile.TemporaryDirectory(prefix="bench-operators-") as folder:
        for name, network in chosen.items():
            save(network.make(network.inputs), Path(folder) / f"{name}.onnx")
        with problems(Path(folder), chosen, 1) as found:
            asked = dict(dynamic_problems(found, chosen, args.dynamic)) if args.dynamic else found
            if not asked:
                raise SystemExit("None of these has weights that dynamic quantisation makes bytes of.")
            for threads in args.threads:
                data, code = raced(asked, settings(models_parser().parse_args([folder, *words]), 1, threads))
                data["precision"] = f"dynamic, {args.dynamic}" if args.dynamic else "float32"
                print(table(data), *notes(data), "", sep="\n", flush=True)
                if code:
                    break
    return code


def dynamic_problems(
    found: Mapping[str, NetworkProblem], networks: Mapping[str, Network], weights: str
) -> Iterator[tuple[str, NetworkProblem]]:
    """Yield the problems with dynamically quantised weights; the reference is that of their own operators."""
    for name, full in found.items():
        made = dynamic(full.path, weights)
        if made is not None:
            yield name, NetworkProblem(made, keep(networks[name], made), full=full)


if __name__ == "__main__":
    sys.exit(main())
