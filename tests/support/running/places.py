"""Processes that know neither home nor cache folder but by variables, and what they say of a place to run in."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from baselib.interpreter import python
from support.running import processes, shipped

PRELUDE = """
import json, os, sys, threading, warnings
caught = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *_: caught.append(f"{category.__name__}: {message}")
import numpy as np
import cpuconv
from cpuconv.conv import session
from cpuconv.problem import reference
from cpuconv.runtime.code.cache import Statistics

rng = np.random.default_rng(0)
x = rng.standard_normal((1, 16, 9, 9), np.float32)
w = rng.standard_normal((16, 16, 1, 1), np.float32)  # compiled soonest
problem = cpuconv.ConvProblem(1, 16, 9, 9, 16, 1, 1)
expected = reference.conv2d(x, w, None, problem)
threads = min(2, cpuconv.get_num_threads())

def right(y):
    return bool(reference.relative_error(np.asarray(y), expected) < 1e-4)

def say(*results):
    ours = [each for each in caught if each.startswith(("CpuconvWarning", "StoreWarning"))]
    counts = {"compiled": Statistics.compiled, "loaded": Statistics.loaded}
    print(json.dumps({"right": all(results), "warnings": ours, **counts}))
"""

BECOME = """
# Now, as the interpreter's own files may be root's alone.
import filelock, numba, platformdirs, secrets, shlex, sqlite3, statistics, subprocess, tempfile
numba.njit(lambda number: number)(1)  # it imports more
try:
    import onnx.parser
except ImportError:
    pass
os.setgroups([])
os.setgid({user})
os.setuid({user})
"""

EVERYTHING = """
results = [right(cpuconv.conv2d(x, w, threads=threads))]
made = cpuconv.plan(x.shape, w, threads=threads)
results.append(right(made(x)) and bool(made.explain()))
session.current.untuned.flush()
session.current.untuned.settle()
try:
    import onnx.parser
except ImportError:
    pass
else:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
        'g (float[1,16,9,9] x) => (float[1,16,9,9] y) { y = Relu(x) }')
    network = cpuconv.compile(model, threads=threads)
    results.append(bool((network(x) == x.clip(0)).all()) and bool(network.explain()))
session.current.untuned.flush()
say(*results)
"""

ONE_CALL = """
say(bool((cpuconv.reorder(x, "NCHW", "NHWC") == x.transpose(0, 2, 3, 1)).all()))
"""


def environment(**variables: str) -> dict[str, str]:
    """Of a process that knows neither home nor cache folder but by these variables."""
    left_out = ("HOME", "XDG_CACHE_HOME", "CPUCONV_CACHE_DIR", "USERPROFILE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": processes.PATH, "PYTHONDONTWRITEBYTECODE": "1", **variables}


def start(code: str, *arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a process printed that ran the code."""
    command = python("-c", code, *arguments)
    return subprocess.run(command, env=environment(**variables), cwd=cwd, capture_output=True, text=True)


def run(code: str, before: str = "", user: int | None = None, **settings: Any) -> dict[str, Any]:
    """What a process says that runs the code after the prelude, as that user, `before` being run first of all."""
    done = start(before + PRELUDE + shipped.code() + (BECOME.format(user=user) if user else "") + code, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def uncached(said: dict[str, Any], why: str) -> None:
    """All was right, nothing came from disk, and one warning said why."""
    assert said["right"] and said["compiled"] >= 1 and said["loaded"] == 0
    assert len(said["warnings"]) == 1, said["warnings"]
    assert said["warnings"][0].startswith("CpuconvWarning: kernels are not cached on disk: ")
    assert why in said["warnings"][0]
