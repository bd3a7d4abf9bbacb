"""The fingerprint of a device, and what it is read from."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from autotune.machine import cores, device, memory
from autotune.machine.device import KEY_EXCLUDED, Device, fingerprint, microarchitecture
from baselib.paths import cache_folder, store_path
from support.running import processes

FIELDS = [field.name for field in dataclasses.fields(Device)]


def changed(value):
    if isinstance(value, tuple):
        return (*value, ("L4", 1 << 30))
    return "other" if isinstance(value, str) else (value or 0) + 1


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in KEY_EXCLUDED])
def test_each_keyed_field_changes_the_key(name: str) -> None:
    here = fingerprint()
    other = dataclasses.replace(here, **{name: changed(getattr(here, name))})
    assert other.key != here.key


@pytest.mark.parametrize("name", KEY_EXCLUDED)
def test_what_times_do_not_depend_on_is_not_keyed(name: str) -> None:
    here = fingerprint()
    assert dataclasses.replace(here, **{name: changed(getattr(here, name))}).key == here.key


def test_the_fingerprint_is_whole_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts no process to find out, and finds out once."""
    monkeypatch.setattr(subprocess, "Popen", None)
    fingerprint.cache_clear()
    key = fingerprint().key
    assert fingerprint() is fingerprint() and fingerprint().key == key
    told = json.loads(json.dumps(fingerprint().to_dict()))
    assert told["key"] == key
    assert len(key) == 16
    assert told["caches"]["L1d"] >= 4096
    assert told["cpu_name"]
    assert told["numpy"] and told["numba"] and told["llvm"]
    assert 1 <= told["cores"] <= told["affinity"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Device]:
    """The fingerprint where the environment holds these of Numba's variables and no others."""

    def look(**variables: str) -> Device:
        with monkeypatch.context() as patch:
            for name in ("CPU_NAME", "CPU_FEATURES", "ENABLE_AVX"):
                patch.delenv(f"NUMBA_{name}", raising=False)
            for name, value in variables.items():
                patch.setenv(f"NUMBA_{name}", value)
            return fingerprint.__wrapped__()

    return look


def test_the_target_is_what_numba_compiles_for(told: Callable[..., Device]) -> None:
    codegen = pytest.importorskip("numba.core.codegen")
    host = told().features
    known = codegen.get_host_cpu_features().split(",")  # none where LLVM knows no features of the host
    assert {*host.split(",")} - {""} == {part for part in known if part.startswith("+")}
    for variables, target in (
        ({"CPU_NAME": "haswell"}, ("haswell", "")),
        ({"CPU_NAME": "haswell", "CPU_FEATURES": "+avx2"}, ("haswell", "+avx2")),
        ({"CPU_NAME": "generic"}, ("generic", "")),
    ):
        device = told(**variables)
        assert (device.cpu_name, device.features) == target
    assert "+avx" not in told(ENABLE_AVX="0").features.split(",")


@pytest.mark.parametrize(
    ("features", "isa"),
    [
        ("+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl", "avx512"),
        ("+avx,+avx2,+fma,-avx512f,+sse4.2", "avx2"),
        ("+sse4.2,+avx", "avx"),
        ("+neon,+dotprod", "neon"),
    ],
)
def test_isa_is_the_widest_whole_one(told: Callable[..., Device], features: str, isa: str) -> None:
    assert told(CPU_FEATURES=features).isa == isa


def test_cpuinfo_of_x86_and_arm(tmp_path: Path) -> None:
    x86, arm = tmp_path / "x86", tmp_path / "arm"
    x86.write_text(
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 97\nmodel name\t: AMD EPYC\n"
        "stepping\t: 2\n\nprocessor\t: 1\nmodel name\t: other\n"
    )
    arm.write_text(
        "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n"
        "CPU revision\t: 1\n"
    )
    assert device.cpu_of(x86) == dict(vendor="AuthenticAMD", model="AMD EPYC", family="25", number="97", stepping="2")
    assert device.cpu_of(arm) == dict(vendor="0x41", model="0xd0c", family="8", number="0xd0c", stepping="1")


def test_caches_from_sysfs_and_by_default(tmp_path: Path) -> None:
    levels = [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2M"), ("Unified", "3", "36608K")]
    for index, content in enumerate(levels):
        (tmp_path / f"index{index}").mkdir()
        for name, text in zip(("type", "level", "size"), content, strict=True):
            (tmp_path / f"index{index}" / name).write_text(text + "\n")
    assert device.caches_of(tmp_path) == {"L1d": 48 << 10, "L2": 2 << 20, "L3": 36608 << 10}
    assert device.caches_of(tmp_path / "none") == device.DEFAULT_CACHES or device.sys.platform == "darwin"


QUOTAS = {
    "v2": ("0::/box\n", {"box/cpu.max": "150000 100000"}, 1.5),
    "v2 without limit": ("0::/box\n", {"box/cpu.max": "max 100000"}, None),
    "v2 of the parent": ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
    "v2 seen from inside": ("0::/far/away\n", {"cpu.max": "50000 100000"}, 0.5),
    "v1": ("4:cpu,cpuacct:/box\n", {"cpu/box/cpu.cfs_quota_us": "400000", "cpu/box/cpu.cfs_period_us": "100000"}, 4.0),
    "v1 without limit": ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    "v1 joint folder": (
        "4:cpu,cpuacct:/\n",
        {"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        3.0,
    ),
    "another controller": ("3:memory:/box\n", {"box/cpu.max": "100000 100000"}, None),
    "unreadable": ("0::/box\n", {"box/cpu.max": "many"}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_quota(tmp_path: Path, case: str) -> None:
    membership, files, expected = QUOTAS[case]
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert cores.quota_cores(tmp_path / "cgroup", tmp_path / "membership") == expected


MEMORY = {
    "v2": ("0::/box\n", {"box/memory.max": "1000", "box/memory.current": "400"}, 600),
    "v2 caches": (
        "0::/box\n",
        {"box/memory.max": "1000", "box/memory.current": "400", "box/memory.stat": "anon 1\ninactive_file 100"},
        700,
    ),
    "v2 of the parent": ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "50", "a/memory.current": "80"}, 0),
    "v1": (
        "4:memory:/box\n",
        {"memory/box/memory.limit_in_bytes": "900", "memory/box/memory.usage_in_bytes": "100"},
        800,
    ),
    "no limit": ("0::/box\n", {"box/memory.max": "max"}, 5000 << 10),
    "nothing known": ("", {}, 5000 << 10),
}


@pytest.mark.parametrize("case", MEMORY)
def test_free_memory(tmp_path: Path, case: str) -> None:
    membership, files, expected = MEMORY[case]
    (tmp_path / "membership").write_text(membership)
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        stat = file.parent / "memory.stat"
        stat.exists() or stat.write_text("anon 1\n")
    assert memory.free_bytes(tmp_path / "cgroup", tmp_path / "membership", tmp_path) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_free_memory_within_a_limit_on_addresses() -> None:
    code = (
        "import resource; from autotune.machine.memory import free_bytes\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0], free_bytes())"
    )
    limit, free = map(int, processes.run("-c", code).stdout.split())
    if limit != 1 << 30:
        pytest.skip("limits on addresses are not set here")  # an emulator does as if
    assert 0 < free < limit


@pytest.mark.parametrize(
    ("affinity", "quota", "allowed"), [(8, None, 8), (8, 1.5, 1), (8, 3.0, 3), (2, 6.0, 2), (4, 0.2, 1)]
)
def test_allowed_cores(monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, allowed: int) -> None:
    monkeypatch.setattr(cores, "affinity_cores", lambda: affinity)
    monkeypatch.setattr(cores, "quota_cores", lambda: quota)
    assert cores.allowed_cores() == allowed


def test_the_cache_folder_is_the_users_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path))
    assert store_path().parent == cache_folder() == tmp_path
    monkeypatch.delenv("CPUCONV_CACHE_DIR")
    assert cache_folder().name == "cpuconv"


@pytest.mark.parametrize(
    "vendor, cpu_name, features, expected",
    [
        ("AuthenticAMD", "znver5", "+avx512f", "amd-znver5-2c"),
        ("AuthenticAMD", "znver4", "+avx512f", "amd-znver4-2c"),
        ("GenuineIntel", "cascadelake", "+avx512f,-amx-tile", "intel-cascadelake-2c"),
        ("GenuineIntel", "cascadelake", "+avx512f,+amx-tile", "intel-sapphirerapids-2c"),
        ("GenuineIntel", "sapphirerapids", "+amx-tile", "intel-sapphirerapids-2c"),
        ("GenuineIntel", "emeraldrapids", "+amx-tile", "intel-emeraldrapids-2c"),
        ("GenuineIntel", "rocketlake", "+amx-tile", "intel-sapphirerapids-2c"),
        ("GenuineIntel", "rocketlake", "+amx-tile,+avx10.1", "intel-graniterapids-2c"),
        ("0x41", "neoverse-n1", "+neon", "arm-neoverse-n1-2c"),
        ("", "generic", "", "x86-64-generic-2c"),
    ],
)
def test_names_of_devices(vendor, cpu_name, features, expected):
    given = {"vendor": vendor, "model": "AMD EPYC", "cpu_name": cpu_name, "features": features, "cores": 2}
    assert dataclasses.replace(fingerprint(), machine="x86_64", **given).name == expected


def test_the_microarchitecture_is_no_part_of_the_key():
    here = dataclasses.replace(fingerprint(), cpu_name="rocketlake", features="+amx-tile")
    assert microarchitecture(here.cpu_name, here.features) == "sapphirerapids"
    assert "name" not in here.to_dict() and "microarchitecture" not in here.to_dict()


@pytest.mark.parametrize("package", ["numpy", "numba", "llvmlite", "pytest", "of-no-package"])
def test_versions_are_those_that_were_installed(package: str) -> None:
    try:
        known = metadata.version(package)
    except metadata.PackageNotFoundError:
        known = ""
    assert device.version_of(package) == known


def test_a_version_is_that_of_the_first_folder_of_the_path(tmp_path: Path, monkeypatch) -> None:
    """Where a broken installation left two there, the standard library decides."""
    for folder, version in (("a", "1.2"), ("b", "3.4+cpu")):
        (tmp_path / folder / f"Given-{version}.dist-info").mkdir(parents=True)
        (tmp_path / folder / f"given_other-{version}.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path / "b"), str(tmp_path / "a")])
    assert device.version_of("given") == "3.4+cpu"
    (tmp_path / "b" / "given-9.dist-info").mkdir()
    (tmp_path / "b" / "given-9.dist-info" / "METADATA").write_text("Name: given\nVersion: 9\n")
    assert device.version_of("given") == metadata.version("given")
