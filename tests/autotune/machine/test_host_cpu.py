"""What a CPU says of itself, beside what LLVM says of it."""

from __future__ import annotations

import pytest

from autotune.machine import host_cpu
from autotune.machine.device import LLVM_OF, version_of
from autotune.machine.host_cpu import EBX, Host

llvm = pytest.importorskip("llvmlite.binding")

AVX, AVX512, AMX = 0x7, 0xE7, 0x600E7  # XCR0
_NAMES = {"intel": b"GenuineIntel", "amd": b"AuthenticAMD", "other": b"HygonGenuine"}
_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "crc32", "cx16", "popcnt")
_HASWELL = (*_V2, "avx", "avx2", "fma", "f16c", "xsave", "bmi", "bmi2", "movbe")
_SKYLAKE = (*_HASWELL, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")


def cpu(vendor: str, family: int, model: int, *features: str) -> host_cpu.Cpuid:
    """A CPU with these features."""
    text = _NAMES[vendor]
    base = min(family, 15)
    signature = (family - base) << 20 | base << 8 | (model >> 4) << 16 | (model & 15) << 4
    registers: dict[tuple[int, int], list[int]] = {
        (0, 0): [36, *(int.from_bytes(text[at : at + 4], "little") for at in (0, 8, 4))],
        (1 << 31, 0): [(1 << 31) + 8, 0, 0, 0],
        (1, 0): [signature, 0, 1 << 27, 0],
        (7, 0): [1, 0, 0, 0],
    }
    for (leaf, subleaf, register), groups in host_cpu._BITS.items():
        for names in groups.values():
            for bit, name in names:
                if name in features:
                    registers.setdefault((leaf, subleaf), [0, 0, 0, 0])[register] |= 1 << bit

    def ask(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        eax, ebx, ecx, edx = registers.get((leaf, subleaf), (0, 0, 0, 0))
        return eax, ebx, ecx, edx

    return ask


def test_this_cpu_is_what_llvm_calls_it() -> None:
    found = host_cpu.host()
    assert found.name == llvm.get_host_cpu_name()
    known = dict(llvm.get_host_cpu_features())
    assert {name: found.features[name] for name in known} == known
    assert found.features.keys() - known.keys() <= set(host_cpu._OF_ARM.values())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("fp asimd aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc asimddp ssbs", "dotprod fullfp16 rcpc rdm"),
        (
            "fp asimd asimdhp asimdrdm lrcpc asimddp sve asimdfhm i8mm bf16",
            "bf16 dotprod fp16fml fullfp16 i8mm rcpc rdm",
        ),
        ("fp asimd evtstrm aes crc32", ""),
    ],
)
def test_what_linux_tells_of_arm(words: str, told: str) -> None:
    found = host_cpu.features_from_cpuinfo(f"processor\t: 0\nFeatures\t: {words}\nCPU part\t: 0xd0c\n")
    assert sorted(name for name, on in found.items() if on) == told.split() and len(found) == len(host_cpu._OF_ARM)
    assert host_cpu.features_from_cpuinfo("flags\t\t: fpu asimddp\n") == {}


def test_the_version_of_llvm_is_known() -> None:
    known = LLVM_OF.get(version_of("llvmlite"))
    assert known in (None, ".".join(map(str, llvm.llvm_version_info)))


@pytest.mark.parametrize(
    ("asked", "saved", "name"),
    [
        (cpu("intel", 6, 0x3C, *_HASWELL), AVX, "haswell"),
        (cpu("intel", 6, 0x5E, *_HASWELL), AVX, "skylake"),
        (cpu("intel", 6, 0x55, *_SKYLAKE), AVX512, "skylake-avx512"),
        (cpu("intel", 6, 0x55, *_SKYLAKE, "avx512vnni"), AVX512, "cascadelake"),
        (cpu("intel", 6, 0x55, *_SKYLAKE, "avx512vnni", "avx512bf16"), AVX512, "cooperlake"),
        (cpu("intel", 6, 0x6A, *_SKYLAKE), AVX512, "icelake-server"),
        (cpu("intel", 6, 0x8F, *_SKYLAKE, "amx-tile"), AMX, "sapphirerapids"),
        (cpu("intel", 6, 0xA7, *_SKYLAKE), AVX512, "rocketlake"),
        (cpu("amd", 0x17, 0x31, *_HASWELL), AVX, "znver2"),
        (cpu("amd", 0x19, 0x01, *_HASWELL), AVX, "znver3"),
        (cpu("amd", 0x19, 0x11, *_SKYLAKE), AVX512, "znver4"),
        (cpu("amd", 0x1A, 0x02, *_SKYLAKE), AVX512, "znver5"),
        (cpu("amd", 0x1A, 0xFF, *_SKYLAKE), AVX512, None),  # newer than the table: LLVM is asked
        (cpu("other", 0x18, 0x01, *_HASWELL), AVX, None),
    ],
)
def test_names_of_cpus(asked: host_cpu.Cpuid, saved: int, name: str | None) -> None:
    found = host_cpu.described(asked, saved)
    assert (found and found.name) == name


def there(asked: host_cpu.Cpuid, saved: int) -> set[str]:
    found = host_cpu.described(asked, saved)
    assert isinstance(found, Host)
    return {name for name, on in found.features.items() if on}


def test_what_the_system_does_not_save_is_not_there() -> None:
    asked = cpu("intel", 6, 0x8F, *_SKYLAKE, "amx-tile", "amx-int8", "avxvnni")
    assert there(asked, AMX) == {*_SKYLAKE, "amx-tile", "amx-int8", "avxvnni"}
    assert there(asked, AVX512) == {*_SKYLAKE, "avxvnni"}
    assert there(asked, AVX) == {*_HASWELL, "avxvnni"}
    assert there(asked, 1) == {*_V2, "bmi", "bmi2", "movbe"}


def test_leaves_that_a_cpu_lacks_are_not_read() -> None:
    def ask(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        known = cpu("amd", 0x19, 0x11, *_SKYLAKE)(leaf, subleaf)
        if (leaf, subleaf) == (0, 0):
            return 1, *known[EBX:]
        if leaf == 7:  # the highest leaf that is there is given for others
            return 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF
        return known

    assert there(ask, AVX512) == {*_V2, "avx", "fma", "f16c", "xsave", "movbe"}


def test_numbas_variables_choose() -> None:
    assert host_cpu.chosen({"NUMBA_CPU_NAME": "generic"}) == ("generic", "")
    assert host_cpu.chosen({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2"}) == ("haswell", "+avx2")
    assert host_cpu.chosen({"NUMBA_CPU_NAME": "haswell"}) == ("haswell", "")
    name, features = host_cpu.chosen({"NUMBA_ENABLE_AVX": "0"})
    assert name == host_cpu.host().name
    assert isinstance(features, dict) and not any(on for key, on in features.items() if key.startswith("avx"))
