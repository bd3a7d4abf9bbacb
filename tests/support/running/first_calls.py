"""First calls of a process from many threads at once: each kind in processes that have called nothing before.

`python -m support.running.first_calls --processes 40` runs all kinds from 2, 4 and 8 threads and says how many
processes ended otherwise than they should. A process is a fork of one that has only imported the library, which is
cheap; with `--fresh` it is a new interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baselib.interpreter import python
from support.running.callers import at_once

THREADS = (2, 4, 8)
SECONDS = 120.0  # until a process counts as hung
_PERIOD = 0.01

NETWORK = """<ir_version: 8, opset_import: ["": 17]>
g (float[{batch},16,24,24] x) => (float[{batch},32,12,12] y) {{
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 32>(b, d)
    e = Conv(c, p)
    f = Add(e, b)
    y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(f)
}}"""

WITHOUT_WEIGHTS = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,16,24,24] x) => (float[1,16,12,12] y) {
    a = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    y = Sigmoid(a)
}"""  # to compile it runs nothing, unlike one whose weights are packed


def _normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


X = _normal((1, 16, 24, 24))
W = _normal((32, 16, 3, 3), 1) / 12


def onnx_model(batch: str) -> Any:
    """A small network, whose batch is a number or a symbol."""
    import onnx.numpy_helper
    import onnx.parser

    model = onnx.parser.parse_model(NETWORK.format(batch=batch))
    weights = {"w": W, "d": _normal((32, 1, 3, 3), 2) / 3, "p": _normal((32, 32, 1, 1), 3) / 6}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def new_function(width: int) -> None:
    """Load or compile micro-kernels that no other width has, for a driver that all have."""
    import cpuconv

    weight = np.ones((8, 8, 3, 3), np.float32)
    cpuconv.plan((1, 8, width, width), weight, padding=1, algorithm="direct", strategy="heuristic")


# --- kinds: each gives what the threads call, in a folder with files of the model -------------------------------------

Call = Callable[[], np.ndarray]


def _conv2d(folder: Path) -> Call:
    import cpuconv

    return lambda: cpuconv.conv2d(X, W, padding=1)


def _plan(folder: Path) -> Call:
    import cpuconv

    return lambda: cpuconv.plan(X.shape, W, padding=1)(X)


def _reorder(folder: Path) -> Call:
    import cpuconv

    return lambda: cpuconv.reorder(X, "NCHW", "NCHW8c")


def _compile(folder: Path) -> Call:
    import cpuconv

    return lambda: cpuconv.compile(folder / "fixed.onnx")(X)


def _run(folder: Path) -> Call:
    import cpuconv

    return _of_model(cpuconv.compile(folder / "fixed.onnx"))


def _run_plain(folder: Path) -> Call:
    import cpuconv

    return _of_model(cpuconv.compile(folder / "plain.onnx"))


def _run_open(folder: Path) -> Call:
    import cpuconv

    return _of_model(cpuconv.compile(folder / "open.onnx"))


def _run_loaded(folder: Path) -> Call:
    import cpuconv

    return _of_model(cpuconv.load(folder / "fixed.cpuconv"))


def _of_model(model: Any) -> Call:
    return lambda: model(X)


def _load(folder: Path) -> Call:
    import cpuconv

    return lambda: cpuconv.load(folder / "fixed.cpuconv")(X)


def _session(folder: Path) -> Call:
    import cpuconv

    return lambda: cpuconv.InferenceSession(folder / "fixed.onnx").run(None, {"x": X})[0]


KINDS: dict[str, Callable[[Path], Call]] = {
    "conv2d": _conv2d,
    "plan": _plan,
    "reorder": _reorder,
    "compile": _compile,
    "run": _run,
    "run without weights": _run_plain,
    "run of open sizes": _run_open,
    "run of a saved model": _run_loaded,
    "load": _load,
    "session": _session,
}


# --- processes --------------------------------------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    """Write the files, compile what is needed, and note what each kind gives: in a process of its own."""
    import onnx.parser

    import cpuconv

    onnx.save(onnx_model("1"), folder / "fixed.onnx")
    onnx.save(onnx_model("N"), folder / "open.onnx")
    onnx.save(onnx.parser.parse_model(WITHOUT_WEIGHTS), folder / "plain.onnx")
    cpuconv.compile(folder / "fixed.onnx").save(folder / "fixed.cpuconv")
    for name, kind in KINDS.items():
        np.save(folder / f"{name}.npy", kind(folder)())


def call_at_once(folder: Path, name: str, threads: int) -> None:
    """The first calls of this process; raises if a result is not what it should be."""
    expected = np.load(folder / f"{name}.npy")
    call = KINDS[name](folder)

    def check(_: int) -> None:
        for _ in range(2):
            np.testing.assert_array_equal(call(), expected)

    at_once(threads, check)


def import_all() -> None:
    """Import what the kinds do, and call nothing."""
    import onnx.parser  # noqa: F401

    import cpuconv

    assert cpuconv.InferenceSession


def forked(body: Callable[[], None]) -> int:
    """The id of a forked child that does this and ends with code 0, or 1 and what was raised on its stderr."""
    process = os.fork()
    if process:
        return process
    code = 1
    with contextlib.suppress(BaseException):
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def ended(process: int, seconds: float = SECONDS) -> str:
    """How a child ended: "" if well, else its code, its signal, or that it hung (and was killed)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"signal {-code}" if code < 0 else f"code {code}"
        time.sleep(_PERIOD)
    os.kill(process, 9)
    os.waitpid(process, 0)
    return f"hung for {seconds:.0f} s"


def failures(folder: Path, name: str, threads: int, processes: int, *, fresh: bool = False) -> list[str]:
    """How those processes ended that did not end well; to be called where nothing has called the library."""
    found = []
    for _ in range(processes):
        if fresh:
            arguments = ["-m", "support.running.first_calls", "--child", str(folder), name, str(threads)]
            command = python(*arguments)
            process = os.posix_spawn(command[0], command, os.environ)
        else:
            process = forked(lambda: call_at_once(folder, name, threads))
        found.append(ended(process))
    return [*filter(None, found)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if a process failed."""
    parser = argparse.ArgumentParser("python -m support.running.first_calls", description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=40, help="of each kind and number of threads (default: 40)")
    parser.add_argument("--threads", default=",".join(map(str, THREADS)), help="numbers of threads (default: 2,4,8)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="by default all, divided by commas")
    parser.add_argument("--fresh", action="store_true", help="new interpreters in place of forks")
    parser.add_argument("--child", nargs=3, metavar=("FOLDER", "KIND", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    faulthandler.enable()
    if options.child:
        folder, name, threads = options.child
        call_at_once(Path(folder), name, int(threads))
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        import_all()
        if trouble := ended(forked(lambda: prepare(Path(folder)))):
            print(f"the preparation ended with {trouble}", file=sys.stderr)
            return 1
        for name in options.kinds.split(","):
            for threads in map(int, options.threads.split(",")):
                found = failures(Path(folder), name, threads, options.processes, fresh=options.fresh)
                failed |= bool(found)
                told = f": {', '.join(sorted(set(found)))}" if found else ""
                print(f"{name}, {threads} threads: {len(found)} of {options.processes} failed{told}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
