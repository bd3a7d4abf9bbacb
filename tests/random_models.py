"""Judge random models: an operator of the table with what stands around it: `python tests/random_models.py`.

    python tests/random_models.py --count 2000 --first 0
    python tests/random_models.py --ops Resize,CumSum --seconds 60
    python tests/cpus.py --arm --models --cpus cortex-a76 --precision float16 --count 40    on an emulated Arm CPU

Each is right, by the references and by ONNX's evaluator, or is refused by an error of ours, and touches nothing around
its arrays. Ends with code 1, and commands that try what failed alone. A process that is stopped shows the command as
the name of a function in its traceback.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from collections import Counter
from pathlib import Path

from support import emulated

emulated.install()

from support import random_models as models  # noqa: E402
from support.guarded import named  # noqa: E402

_SHOWN = 20  # failures that are printed


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    if not faulthandler.is_enabled():  # as under pytest
        faulthandler.enable()
    told: Counter[str] = Counter()
    start = time.monotonic()
    of = f" --ops {','.join(options.ops)}" if options.ops != models.OPERATORS else ""
    of += f" --precision {options.precision}" if options.precision != "float32" else ""
    for number in range(options.first, options.first + options.count):
        if time.monotonic() - start > options.seconds:
            break
        command = f"python {Path(__file__).parent.name}/{Path(__file__).name}{of} --first {number} --count 1"
        drawn = None
        try:
            drawn = models.draw(number, options.ops)
            told[named(command, lambda: models.judge(drawn, number, options.precision))] += 1  # noqa: B023
        except Exception as error:
            told["wrong"] += 1
            if told["wrong"] <= _SHOWN:
                said = str(error).partition("\n")[0][:400]
                print(f"{command}\n  {drawn and (drawn.op, drawn.spoilt)}: {type(error).__name__}: {said}", flush=True)
    seconds = time.monotonic() - start
    print(f"{told.total()} models in {seconds:.0f} s: {', '.join(f'{count} {what}' for what, count in told.items())}")
    return 1 if told["wrong"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--ops", type=_among, default=models.OPERATORS, metavar="OP,OP", help="operators (all)")
    parser.add_argument("--count", type=int, default=2000, help="models (2000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them (0)")
    parser.add_argument("--precision", default="float32", help="of the models (float32)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no more after so many")
    return parser


def _among(text: str) -> tuple[str, ...]:
    asked = tuple(text.split(","))
    if not {*asked} <= {*models.OPERATORS}:
        raise argparse.ArgumentTypeError(f"must be operators of the table, not {text!r}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
