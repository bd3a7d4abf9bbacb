"""Ctrl-C at any moment while kernels are compiled: it waits for the compiler, and then ends cleanly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from baselib.interpreter import python
from support.graphs import parse

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent otherwise there")

TRIES = 50
# Compiles kernels for ever; each interrupt must end one attempt by KeyboardInterrupt, and leave a compiler that works.
CODE = """
import itertools, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
from dataclasses import dataclass
from cpuconv.runtime.kernel import kernel
numbers = itertools.count()

@dataclass(frozen=True)
class Tile:
    number: int

@kernel("a b")
def work(tile, worker, before, part, parts, args):
    a = args.a
    for i in range(a):
        for j in range(args.b):
            if (i * j) % (tile.number + 2) == 1:
                a += j
            elif i > tile.number:
                a -= 1

def compile_one():
    work.entry(Tile(next(numbers)))

compile_one()
while True:
    try:
        print("begun", flush=True)
        while True:
            compile_one()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_fifty_interrupts_at_random_moments(tmp_path: Path) -> None:
    draw, script = random.Random(1), tmp_path / "compiles.py"
    script.write_text(CODE)
    with open(tmp_path / "errors", "w+") as errors:
        process = subprocess.Popen(
            python("-c", CODE),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "CPUCONV_CACHE_DIR": str(tmp_path / "cache")},
        )
        assert process.stdout is not None
        try:
            for at in range(TRIES):
                assert process.stdout.readline() == "begun\n", at
                time.sleep(draw.uniform(0, 0.12))
                process.send_signal(signal.SIGINT)
                begun = time.monotonic()
                assert process.stdout.readline() == "interrupted\n", at
                assert time.monotonic() - begun < 60
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        assert errors.read() == ""


def test_it_is_said_on_a_terminal_and_the_command_ends_with_its_code(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    model = tmp_path / "net.onnx"
    weights = ",".join("1" * 24)
    text = f"g (float[1,3,40,40] x) => (float[1,8,40,40] y) <float[8,3,1,1] w = {{{weights}}}> {{ y = Conv(x, w) }}"
    onnx.save(parse(text), model)
    code = (
        "import signal, sys, threading, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from cpuconv.cli.main import main\n"
        "from cpuconv.runtime import machine_code\n"
        "inner = machine_code.compiled\n"
        "def slow(*given):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    return inner(*given)\n"
        "machine_code.compiled = slow\n"
        f"sys.exit(main(['run', {str(model)!r}]))"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.environ["CPUCONV_CACHE_DIR"] = str(tmp_path / "cache")
        command = python("-c", code)
        os.execvp(command[0], command)
    told = b""
    try:
        while part := os.read(terminal, 4096):
            told += part
    except OSError:  # the terminal's other end is closed
        pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert b"cpuconv: interrupted, and ends when the kernel that is being compiled is done" in told
    assert b"cpuconv: interrupted\r\n" in told and b"Traceback" not in told
    assert os.waitstatus_to_exitcode(status) == 130
