"""Which packs serve which CPUs: the nearest whose code they run, and none whose features they lack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.machine.device import DEFAULT_CACHES
from cpuconv.isa import table
from cpuconv.runtime.code.packs import cpu_classes
from cpuconv.runtime.code.packs.cpu_classes import ARM, BY_NAME, CLASSES, X86, fitting

V2 = BY_NAME["x86-64-v2"].features
V3 = BY_NAME["haswell"].features
V4 = BY_NAME["skylake-avx512"].features
ICELAKE = BY_NAME["icelake-server"].features
NEON = BY_NAME["cortex-a55"].features
OF_AMD = {"sse4a", "clzero", "mwaitx", "prfchw", "xsaves"}
OF_INTEL = {"invpcid", "rtm", "sgx", "xsaves"}

# LLVM's name, what the CPU has, and the classes that serve it, the best first.
CPUS = {
    "Zen 5": ("znver5", BY_NAME["znver5"].features | OF_AMD, ["znver5", "znver4", "icelake-server", "skylake-avx512"]),
    "Zen 4": ("znver4", BY_NAME["znver4"].features | OF_AMD, ["znver4", "icelake-server", "skylake-avx512"]),
    "Zen 3": ("znver3", V3 | OF_AMD, ["znver3", "haswell"]),
    "Zen 2": ("znver2", V3 | OF_AMD, ["znver3", "haswell"]),
    "Zen 5 whose AVX-512 is hidden": ("znver5", V3 | OF_AMD | {"avxvnni"}, ["znver3", "haswell"]),
    "Haswell": ("haswell", V3 | OF_INTEL, ["haswell"]),
    "Broadwell": ("broadwell", V3 | OF_INTEL | {"prfchw"}, ["znver3", "haswell"]),
    "Alder Lake": ("alderlake", V3 | OF_INTEL | {"avxvnni", "prfchw"}, ["znver3", "haswell"]),
    "Skylake-X": ("skylake-avx512", V4 | OF_INTEL, ["skylake-avx512"]),
    "Cascade Lake": ("cascadelake", V4 | OF_INTEL | {"avx512vnni"}, ["skylake-avx512"]),
    "Ice Lake": ("icelake-server", ICELAKE | OF_INTEL, ["icelake-server", "skylake-avx512"]),
    "Rocket Lake": ("rocketlake", ICELAKE | OF_INTEL, ["icelake-server", "skylake-avx512"]),
    "Sapphire Rapids": (
        "sapphirerapids",
        BY_NAME["sapphirerapids"].features | OF_INTEL,
        ["sapphirerapids", "znver5", "znver4", "icelake-server", "skylake-avx512"],
    ),
    "Sapphire Rapids without tiles": (
        "sapphirerapids",
        {*BY_NAME["sapphirerapids"].features} - {"amx-tile", "amx-int8", "amx-bf16"},
        ["znver5", "znver4", "icelake-server", "skylake-avx512"],
    ),
    "Nehalem": ("nehalem", V2, ["x86-64-v2"]),
    "Sandy Bridge": ("sandybridge", V2 | {"avx", "xsave"}, ["x86-64-v2"]),
    "plain x86-64": ("x86-64", {"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"}, []),
    "one of no features that LLVM knows": ("generic", set(), []),
}
ARMS = {
    "Cortex-A55": ("cortex-a55", NEON, ["cortex-a55", "cortex-a72"]),
    "Cortex-A76": ("cortex-a76", NEON | {"rcpc"}, ["cortex-a76", "neoverse-n1", "cortex-a55", "cortex-a72"]),
    "Neoverse N1": ("neoverse-n1", NEON | {"rcpc"}, ["neoverse-n1", "cortex-a76", "cortex-a55", "cortex-a72"]),
    "Neoverse V1": (
        "neoverse-v1",
        BY_NAME["neoverse-v1"].features | {"sha2"},
        ["neoverse-v1", "apple-m1", "neoverse-n1", "cortex-a76", "cortex-a55", "cortex-a72"],
    ),
    "Cortex-A53": ("cortex-a53", {"neon", "fp-armv8", "crc"}, ["cortex-a72"]),
}


@pytest.mark.parametrize("cpu", CPUS)
def test_cpus_of_x86(cpu: str) -> None:
    name, features, classes = CPUS[cpu]
    assert [each.name for each in fitting(X86, name, features)] == classes
    assert fitting(ARM, name, features) == []


@pytest.mark.parametrize("cpu", ARMS)
def test_cpus_of_arm(cpu: str) -> None:
    name, features, classes = ARMS[cpu]
    assert [each.name for each in fitting(ARM, name, features)] == classes
    assert fitting(X86, name, features) == []


@pytest.mark.parametrize("cpu", CLASSES, ids=lambda cpu: cpu.name)
def test_a_class_serves_its_own_cpu_first_and_none_that_lacks_a_feature(cpu: cpu_classes.CpuClass) -> None:
    assert fitting(cpu.machine, cpu.name, cpu.features)[0] is cpu
    for feature in cpu.features:
        assert cpu not in fitting(cpu.machine, cpu.name, cpu.features - {feature})


def isa_of(features: frozenset[str] | set[str]) -> table.Isa:
    return table.isa_from_features(",".join(f"+{each}" for each in features)) or BASE


BASE = next(isa for isa in table.TABLE if not isa.feature)


@pytest.mark.parametrize("cpu", CPUS)
def test_a_cpu_and_the_classes_that_serve_it_have_one_instruction_set(cpu: str) -> None:
    """So tiles and layouts are chosen from the same numbers of lanes and registers."""
    name, features, _ = CPUS[cpu]
    for each in fitting(X86, name, features):
        assert isa_of(each.features) is isa_of(features)


def test_rows_are_whole() -> None:
    assert len(BY_NAME) == len(CLASSES)
    for each in CLASSES:
        assert len(each.caches) == len(DEFAULT_CACHES) and each.features.isdisjoint(each.wider)
        assert replace(each) == each


def test_among_equal_ones_that_of_the_same_maker_comes_first() -> None:
    assert [each.name for each in fitting(ARM, "neoverse-n2", NEON | {"rcpc"})][0] == "neoverse-n1"
    assert [each.name for each in fitting(ARM, "cortex-a78", NEON | {"rcpc"})][0] == "cortex-a76"
