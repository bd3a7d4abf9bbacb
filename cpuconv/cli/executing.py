"""`cpuconv exec`: run a Python program whose ONNX Runtime sessions cpuconv serves."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from autotune.cli.options import USAGE, positive, say
from cpuconv.conv.choice.target import supported_precisions
from cpuconv.integrations.substitute import install
from cpuconv.memory.heap import reuse_large_blocks

HELP = "run a Python program unedited, with its ONNX Runtime sessions served by cpuconv"


def add_options(made: argparse.ArgumentParser) -> None:
    """Add the options of the command; what follows the program's name belongs to the program."""
    made.add_argument(
        "--threads", metavar="N", type=positive(int), help="max. threads of sessions that leave the number open"
    )
    made.add_argument(
        "--precision",
        choices=supported_precisions(),
        help="precision of sessions that do not request one (default: float32)",
    )
    made.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is a module, as for python -m")
    made.add_argument("program", metavar="PROGRAM", help="a Python file, or with -m a module")
    made.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="arguments of the program")


def execute(options: argparse.Namespace) -> int:
    """Run the program in this process as `python PROGRAM ...` does; its exit code and errors are its own."""
    if not options.is_module and not os.path.exists(options.program):
        return say(f"PROGRAM must be a Python file that exists, not {options.program!r}", USAGE, "cpuconv")
    try:
        install(options.threads, options.precision)
    except ImportError as error:
        return say(f"exec needs the program's ONNX Runtime: {error} (pip install onnxruntime)", USAGE, "cpuconv")
    reuse_large_blocks()  # for the program's arrays; ONNX Runtime's sessions free large blocks, which does the same
    sys.argv[:] = [options.program, *options.arguments]
    if options.is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(options.program))
        runpy.run_path(options.program, run_name="__main__")
    return 0
