"""Packs of CPUs that this one is not: what is compiled for them, and that it is code of theirs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from bench.packs import __main__ as building
from bench.packs import features, wanted
from cpuconv.runtime.code.loading import object_file
from cpuconv.runtime.code.packs.cpu_classes import ARM, BY_NAME, CLASSES, X86
from support.running import processes

MACHINES = {X86: object_file.X86, ARM: object_file.ARM}


@pytest.mark.parametrize("cpu", CLASSES, ids=lambda cpu: cpu.name)
def test_what_code_may_use_is_stated(cpu):
    words = features.stated(cpu).split(",")
    assert {word[1:] for word in words if word[0] == "+"} == cpu.features
    assert len(words) == len(features.KNOWN[cpu.machine]) >= 25


def test_what_this_machine_lacks(monkeypatch):
    there = dict.fromkeys(BY_NAME["haswell"].features, True) | {"avx512f": False}
    monkeypatch.setattr(features.host_cpu, "host", lambda: features.host_cpu.Host("haswell", there))
    monkeypatch.setattr(features.platform, "machine", lambda: X86)
    assert features.lacking(BY_NAME["haswell"]) == []
    assert features.lacking(BY_NAME["skylake-avx512"]) == [
        *("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "prfchw")
    ]
    assert features.lacking(BY_NAME["cortex-a55"]) == [f"architecture {ARM}"]


PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from bench.packs import dry
from cpuconv.runtime.code.packs.cpu_classes import BY_NAME
dry.begin(BY_NAME[sys.argv[1]])
from cpuconv.conv.remembering.fingerprint import Fingerprinter
from cpuconv.kernels.emit.product import matrix_product_of
from cpuconv.problem.types import Types
from cpuconv.runtime.code.cache import noting
from cpuconv.runtime.thread_pool import Helpers
from cpuconv.runtime.threads import maximum_threads
with noting() as names:
    Helpers(1)
    ones, twos = (np.full(4096, value, np.float32) for value in (1, 2))
    read = Fingerprinter(bytes)
    told = [read(each) for each in (ones, twos, ones.copy())]
matrix = matrix_product_of(Types.parse("u8"))
same = [told[0] == told[1], told[0] == told[2]]
print(json.dumps([sorted(names), same, matrix and matrix.instruction, maximum_threads()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="packs are made for Linux")
@pytest.mark.skipif(bool(os.environ.get("CPUCONV_LAUNCHER")), reason="an emulated compiler takes minutes")
@pytest.mark.parametrize(("name", "matrix"), [("sapphirerapids", "tdpbusd"), ("cortex-a76", None)])
def test_code_of_a_cpu_is_compiled_and_not_run(tmp_path: Path, name: str, matrix: str | None) -> None:
    cpu = BY_NAME[name]
    done = processes.run("-c", PROGRAM, name, CPUCONV_CACHE_DIR=str(tmp_path), **building.environment(cpu))
    names, same, found, threads = json.loads(done.stdout)
    assert same == [False, True]  # content tells arrays apart, though the kernel that sums it did not run
    assert found == matrix and threads == max(wanted.THREADS)
    kernels = building.collected(tmp_path, names)
    assert len(kernels) == 5
    images = [object_file.read(content.partition(b"\0")[2]) for content in kernels.values()]
    assert {image.machine for image in images} == {MACHINES[cpu.machine]}
