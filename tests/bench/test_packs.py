"""Packs of CPUs that this one is not: what is compiled for them, and that it is code of theirs."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable

import pytest

from bench.packs import __main__ as building
from bench.packs import contents, features, orders
from bench.packs.features import environment
from cpuconv.runtime.code.loading import object_file
from cpuconv.runtime.code.packs import active_pack
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
from bench.packs import dry_run, orders
from cpuconv.runtime.code.packs.cpu_classes import BY_NAME
dry_run.begin(BY_NAME[sys.argv[1]])
orders.begin(BY_NAME[sys.argv[1]])
from cpuconv.conv.caches.fingerprint import Fingerprinter
from cpuconv.kernels.emit.product import matrix_product_of
from cpuconv.problem.types import Types
from cpuconv.runtime.code.cache import recording_names
from cpuconv.runtime.thread_pool import Helpers
from cpuconv.runtime.threads import maximum_threads
with recording_names() as names:
    Helpers(1)
    ones, twos = (np.full(4096, value, np.float32) for value in (1, 2))
    read = Fingerprinter(bytes)
    told = [read(each) for each in (ones, twos, ones.copy())]
matrix = matrix_product_of(Types.parse("u8"))
same = [told[0] == told[1], told[0] == told[2]]
print(json.dumps([sorted(names), same, matrix and matrix.instruction, maximum_threads()]))
"""


Told = tuple[dict[str, bytes], list[bool], str | None, int]
COMPILES = [
    pytest.mark.skipif(sys.platform != "linux", reason="packs are made for Linux"),
    pytest.mark.skipif(bool(os.environ.get("CPUCONV_LAUNCHER")), reason="an emulated compiler takes minutes"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Told]:
    """By the name of a class what the program compiles for it, and what it says."""

    @functools.cache
    def compile_(name: str) -> Told:
        folder = tmp_path_factory.mktemp(name)
        done = processes.run("-c", PROGRAM, name, CPUCONV_CACHE_DIR=str(folder), **environment(BY_NAME[name]))
        names, *told = json.loads(done.stdout)
        return building.collected(folder, names), *told

    return compile_


class TestCompiling:
    pytestmark = COMPILES

    @pytest.mark.parametrize(("name", "matrix"), [("sapphirerapids", "tdpbusd"), ("cortex-a76", None)])
    def test_code_of_a_cpu_is_compiled_and_not_run(
        self, compiled: Callable[[str], Told], name: str, matrix: str | None
    ):
        kernels, same, found, threads = compiled(name)
        assert same == [False, True]  # content tells arrays apart, though the kernel that sums it did not run
        assert found == matrix and threads == max(contents.THREADS)
        assert len(kernels) == 5
        images = [object_file.read(content.partition(b"\0")[2]) for content in kernels.values()]
        assert {image.machine for image in images} == {MACHINES[BY_NAME[name].machine]}

    def test_classes_of_one_order_have_equal_kernels_of_equal_names(self, compiled: Callable[[str], Told]):
        assert compiled("cortex-a76")[0] == compiled(orders.ORDERS["cortex-a76"])[0]


@pytest.mark.parametrize("cpu", orders.ORDERS)
def test_an_order_is_that_of_a_class_of_the_same_architecture_which_has_its_own(cpu: str):
    assert BY_NAME[orders.ORDERS[cpu]].machine == BY_NAME[cpu].machine and orders.ORDERS[cpu] not in orders.ORDERS


def test_the_class_of_this_cpu_is_the_one_that_serves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(active_pack, "fitting", lambda: [BY_NAME["znver3"], BY_NAME["haswell"]])
    assert building.classes("native") == [BY_NAME["znver3"]]
    assert building.classes("znver4,haswell") == [BY_NAME["znver4"], BY_NAME["haswell"]]
    assert building.classes("") == [*CLASSES]
    monkeypatch.setattr(active_pack, "fitting", lambda: [])
    assert building.main(["--classes", "native"]) == 0 and "no class of packs serves" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--classes"):
        building.classes("native,haswell")


@pytest.mark.parametrize(("most", "code"), [(1, 1), (building.MAX_BYTES, 0)])
def test_packs_that_are_too_large_are_a_failure(most: int, code: int, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(building, "MAX_BYTES", most)
    monkeypatch.setattr(building, "compiled", lambda cpu, options: {f"kernel-{'0' * 20}": b"code"})
    assert building.main(["--classes", "haswell", "-o", str(tmp_path)]) == code
    assert ("that is more than" in capsys.readouterr().err) == bool(code)
    assert {path.name for path in tmp_path.iterdir()} == {"x86_64.pack", "sources"}
