"""Options of the commands that compile a model: which model, sizes and precision; and the arrays it is fed."""

from __future__ import annotations

import argparse

from autotune.cli.options import input_shape, positive, threads, whole
from autotune.cli.wide import add_wide
from cpuconv.api.precision import AUTO
from cpuconv.cli.arguments import given_input, node_precision, precision
from cpuconv.cli.feeds import RANDOM
from cpuconv.conv.choice.model import ACCURACIES, STRATEGIES
from cpuconv.conv.choice.target import supported_precisions
from cpuconv.images.image import PRESETS


def add_model_options(made: argparse.ArgumentParser) -> None:
    """Add the model and the options that compile it."""
    made.add_argument("model", metavar="MODEL", help="an ONNX file, or a file that 'cpuconv compile' wrote")
    made.add_argument(
        "--threads",
        metavar="N",
        type=threads,
        help="max. threads of a run, or auto: the fastest number (default: the cores allowed)",
    )
    made.add_argument(
        "--strategy",
        choices=STRATEGIES,
        help="how convolutions' algorithms are selected: cost model, tuning results (default), or timed now",
    )
    made.add_argument(
        "--shape",
        metavar="NAME=1x3x224x224",
        type=input_shape,
        action="append",
        default=[],
        help="sizes of an input, or of a symbolic size, that the model leaves open; may be repeated"
        " (default: 1 for a first axis)",
    )
    made.add_argument("--accuracy", choices=ACCURACIES, help="default: standard")
    made.add_argument(
        "--precision",
        type=precision,
        metavar="NAME",
        help=f"{', '.join((*supported_precisions(), AUTO))}: precision to which operands and tensors may be rounded "
        "where that is faster (default: float32); auto: the fastest combination whose measured error is within "
        "--tolerance for all --samples",
    )
    made.add_argument(
        "--tolerance",
        metavar="T",
        type=positive(float),
        help="with --precision auto: max. relative RMS error of the outputs (default: 0.01)",
    )
    made.add_argument(
        "--samples",
        metavar="DIR|FILE.npz",
        help="with --precision auto: input samples, arrays by input name; a folder of .npz files, or one file whose"
        " arrays have an additional first axis of samples",
    )
    made.add_argument(
        "--node-precision",
        metavar=f"NAME={'|'.join(supported_precisions())}",
        type=node_precision,
        action="append",
        default=[],
        help="precision of one node of the model, by its name; may be repeated",
    )
    made.add_argument(
        "--trust-kernels",
        action="store_true",
        help="run the machine code that 'compile --kernels' stored in the file: only use it for files from"
        " trusted sources, as the code has all your permissions",
    )
    made.add_argument("--strict", action="store_true", help="refuse operators that have no kernels")
    made.add_argument("--json", action="store_true", help="print as JSON")
    add_wide(made)


def add_inputs(made: argparse.ArgumentParser) -> None:
    """Add the options of the arrays that the model is fed."""
    made.add_argument(
        "--input",
        metavar=f"NAME=FILE.npy|{RANDOM}",
        type=given_input,
        action="append",
        default=[],
        help=f"array for an input; may be repeated (default: {RANDOM}; floats follow the standard normal "
        "distribution, integers are from 0 to 9)",
    )
    made.add_argument(
        "--image",
        metavar="FILE",
        action="append",
        default=[],
        help="picture for the network's image input, resized and normalised; repeated: a batch",
    )
    made.add_argument(
        "--preset",
        choices=PRESETS,
        help="how pictures become the input: as these networks (default: as the saved model states, or imagenet)",
    )
    made.add_argument("--seed", metavar="N", type=whole, default=0, help="seed of the random numbers (default: 0)")
