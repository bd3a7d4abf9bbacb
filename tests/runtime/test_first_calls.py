"""The first calls of a process may come from many threads; `support.running.first_calls` tries more processes."""

from __future__ import annotations

import os

import pytest

from support.running import first_calls, processes

PROCESSES = 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_first_calls_from_many_threads():
    """Of each kind, from 2, 4 and 8 threads, a few processes each: none crashes or hangs, results are equal."""
    pytest.importorskip("onnx")
    said = processes.run("-m", "support.running.first_calls", "--processes", str(PROCESSES)).stdout.splitlines()
    assert len(said) == len(first_calls.KINDS) * len(first_calls.THREADS)
    assert all(line.endswith(f"0 of {PROCESSES} failed") for line in said)
