"""`cpuconv quantize`: options and report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from autotune.cli.options import input_shape, new_file, positive, whole
from autotune.cli.wide import add_wide, on_screen
from baselib.files import write_whole
from cpuconv.cli.progress import bar
from cpuconv.cli.quantized_page import page
from cpuconv.images.image import PRESETS, Image
from cpuconv.quantizing.arguments import TYPES
from cpuconv.quantizing.data.images import ImageForm
from cpuconv.quantizing.quantize import quantize
from cpuconv.quantizing.ranges import METHODS

_EQUALIZE = {"auto": None, "yes": True, "no": False}
HELP = "quantise a model to int8: write an ONNX file with QuantizeLinear and DequantizeLinear"


def add_options(made: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    form = ImageForm()
    made.add_argument("model", metavar="MODEL", help="a float32 ONNX file")
    made.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the ONNX file to write")
    made.add_argument(
        "--data", metavar="DIR", required=True, help="samples: a folder of .npz files (one feed per file) or of images"
    )
    made.add_argument(
        "--tolerance", metavar="T", type=positive(float),
        help="max. relative RMS error of the outputs: layers stay in float32 until it is met",
    )  # fmt: skip
    made.add_argument(
        "--layers", metavar="N", type=whole, default=0, help="min. number of layers that stay in float32 (default: 0)"
    )
    made.add_argument(
        "--no-timing", action="store_true", help="skip timing: also quantise layers that int8 does not make faster"
    )
    made.add_argument("--method", choices=METHODS, default="mse", help="how value ranges are calibrated (default: mse)")
    made.add_argument(
        "--percentile", metavar="P", type=positive(float), default=99.99,
        help="percentile of values within a range at each end, for --method percentile (default: 99.99)",
    )  # fmt: skip
    made.add_argument(
        "--activations", choices=TYPES, default="uint8", help="element type of activations (default: uint8)"
    )
    made.add_argument(
        "--keep", metavar="NODE", action="append", default=[], help="a node that stays in float32; may be repeated"
    )
    made.add_argument(
        "--full-range",
        action="store_true",
        help="use the full int8 range for weights; on AVX2 without VNNI sums may saturate",
    )
    made.add_argument(
        "--equalize", choices=_EQUALIZE, default="auto",
        help="equalise channel ranges between layers first (default: auto, if that reduces the error)",
    )  # fmt: skip
    made.add_argument("--no-correct", action="store_true", help="do not correct biases")
    made.add_argument(
        "--shape", metavar="NAME=1x3x224x224", type=input_shape, action="append", default=[],
        help="sizes of an input that the model leaves open, for images; may be repeated",
    )  # fmt: skip
    for name, numbers, what in (("mean", form.mean, "mean"), ("std", form.std, "standard deviation")):
        made.add_argument(
            f"--{name}", metavar="R,G,B", type=_numbers, default=numbers,
            help=f"{what} of images per channel, from 0 to 1 (default: {','.join(map(str, numbers))})",
        )  # fmt: skip
    made.add_argument(
        "--preset", choices=PRESETS, help="how images become the input, in place of --mean and --std: as these networks"
    )
    made.add_argument(
        "--threads", metavar="N", type=positive(int), help="threads of the runs on samples (default: the cores allowed)"
    )
    made.add_argument("--json", action="store_true", help="print as JSON")
    made.add_argument(
        "--html", metavar="FILE", type=new_file, help="also write an HTML page (may be combined with --json)"
    )
    add_wide(made)


def run(options: argparse.Namespace) -> None:
    """Quantise a model according to the options, and print the report."""
    with bar(f"quantizing {options.model}") as progress:
        made = quantize(
            options.model, options.data, output=options.output, tolerance=options.tolerance, layers=options.layers,
            refuse_slower=not options.no_timing, method=options.method, percentile=options.percentile,
            activations=options.activations, keep=options.keep, equalize=_EQUALIZE[options.equalize],
            correct_biases=not options.no_correct, full_range=options.full_range, input_shapes=dict(options.shape),
            image_mean=options.mean, image_std=options.std,
            image=None if options.preset is None else Image.preset(options.preset), threads=options.threads,
            progress=progress,
        )  # fmt: skip
    if options.html is not None:
        write_whole({options.html: page(Path(options.model).stem, made)})
    if options.json:
        print(json.dumps(made.to_dict(), indent=2, ensure_ascii=False))
    else:
        print(on_screen(made, options))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be numbers such as 0.5,0.5,0.5, not {text!r}") from error
