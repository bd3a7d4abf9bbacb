"""The suite on other CPUs: how interpreters are started there, and the message where a CPU cannot be emulated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import arm
import cpus
import pytest

from autotune.tuning import background, worker
from baselib.interpreter import VARIABLE, python
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from support import lowered, machines
from support.running.processes import ROOT, SHIPPED

SPEC = "support.tuner.fake:workload"
not_emulated = pytest.mark.skipif(VARIABLE in os.environ, reason="inside of what it would make")


def test_a_launcher_comes_before_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert python("-c", "x") == [sys.executable, "-c", "x"]
    monkeypatch.setenv(VARIABLE, "emulate -cpu 'a b'")
    assert python() == ["emulate", "-cpu", "a b", sys.executable]


def test_the_tuners_processes_are_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "emulate")
    started: list[str] = []

    def popen(command: list[str], **_: object) -> None:
        started.append(command[0])
        raise OSError("no such program")

    monkeypatch.setattr(subprocess, "Popen", popen)
    for start in (worker._Worker(SPEC).ready, lambda: background.Background(SPEC, tmp_path / "store", "quick")):
        with pytest.raises(OSError, match="no such program"):
            start()
    assert started == ["emulate"] * 2


def test_nobody_else_starts_interpreters() -> None:
    files = [path for room in (*SHIPPED, "bench", "tests") for path in (ROOT / room).rglob("*.py")]
    starters = {path.relative_to(ROOT).as_posix() for path in files if "sys.executable" in path.read_text()}
    assert starters == {
        "baselib/interpreter.py",
        "tests/arm.py",
        "tests/project/test_cpus.py",
        "tests/project/test_first_minutes.py",
        "tests/project/test_site.py",
        "tests/project/test_types.py",
    }


def test_a_described_machine_lasts_as_long_as_its_context() -> None:
    before = current(), machine()
    for described in machines.MACHINES.values():
        with machines.simulating(described):
            assert (current(), machine()) == (described.isa, described)
        assert (current(), machine()) == before


def test_cpus_that_cannot_be_executed_are_left_out(monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setattr(cpus.llvm, "get_host_cpu_features", lambda: dict.fromkeys(cpus.NATIVE["haswell"], True))
    ran: list[str] = []

    def ended(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess:
        ran.append(env["NUMBA_CPU_NAME"])
        return subprocess.CompletedProcess(command, ran[-1] == "haswell")

    monkeypatch.setattr(subprocess, "run", ended)
    assert cpus.main([]) == cpus.FAILED
    assert ran == ["x86-64", "haswell"]
    assert re.search(r"^== znver4: left out, as this CPU has no avx512f, ", capfd.readouterr().out, re.MULTILINE)
    assert cpus.main(["--cpus", "x86-64"]) == cpus.PASSED
    with pytest.raises(SystemExit):
        cpus.main(["--cpus", "x86-64,pdp11"])


@pytest.mark.parametrize(
    ("own", "wanted", "in_place"),
    [
        ("haswell", ["x86-64"], ["znver4, lowered"]),
        ("skylake-avx512", ["x86-64", "haswell"], ["znver4, lowered"]),
        ("znver4", ["x86-64", "haswell"], []),
        ("x86-64", ["haswell"], ["znver4"]),
    ],
)
def test_a_slice_is_of_other_kinds_of_code_than_this_cpus(
    own: str, wanted: list[str], in_place: list[str], monkeypatch, capfd
) -> None:
    monkeypatch.setattr(cpus.llvm, "get_host_cpu_features", lambda: dict.fromkeys(cpus.NATIVE[own], True))
    ran: list[str] = []
    monkeypatch.setattr(cpus, "_run", lambda name, options: ran.append(name))
    others: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(cpus, "_started", lambda name, options, **_: others.append((name, options)))
    assert cpus.main(["--slice"]) == cpus.PASSED and ran == wanted
    assert [name for name, _ in others if not name.startswith("sapphirerapids")] == in_place  # nobody's own: AMX
    assert ("znver4", [*cpus.READ["znver4"]]) in others or own != "x86-64"  # compiled, where nothing stands for it
    said = re.findall(r"^== (\S+): left out of the slice", capfd.readouterr().out, re.MULTILINE)
    assert sorted([*ran, *said]) == ["haswell", "x86-64"]
    ran.clear()
    assert cpus.main(["--slice", "--cpus", "haswell"]) == cpus.PASSED and ran == ["haswell"]


def test_cpus_whose_code_others_stand_in_for(monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    ran: list[tuple[str | None, str | None]] = []

    def ended(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess:
        ran.append((env.get("NUMBA_CPU_NAME"), env.get(lowered.VARIABLE)))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", ended)
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    monkeypatch.delenv(lowered.VARIABLE, raising=False)
    monkeypatch.setattr(cpus.llvm, "get_host_cpu_features", lambda: dict.fromkeys(cpus.NATIVE["haswell"], True))
    assert cpus.main(["--lowered"]) == cpus.PASSED
    assert ran == [(None, name) for name in cpus.LOWERED]
    ran.clear()
    monkeypatch.setattr(cpus.llvm, "get_host_cpu_features", dict)
    assert cpus.main(["--lowered", "--cpus", "znver4"]) == cpus.PASSED and not ran
    assert "== znver4: left out, as this CPU has no avx2, " in capfd.readouterr().out
    for wrong in (["--lowered", "--arm"], ["--lowered", "--cpus", "haswell"]):
        with pytest.raises(SystemExit):
            cpus.main(wrong)


def test_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    ran: list[str] = []
    monkeypatch.setattr(cpus, "_run", lambda name, options: ran.extend(options))
    for part in range(1, 9):
        assert cpus.main(["--cpus", "x86-64", "--part", f"{part}/8"]) == cpus.PASSED
    assert sorted(ran) == sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    for wrong in ("0/8", "9/8", "x", "1"):
        with pytest.raises(SystemExit):
            cpus.main(["--part", wrong])
        assert "must be two numbers I/N" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cpus.main(["--slice", "--part", "1/8"])


@not_emulated
def test_an_arm_that_cannot_be_emulated_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv("CPUCONV_ARM_ROOT", str(tmp_path / "arm"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpus.main(["--arm", "--slice"]) == cpus.CANNOT
    assert "cannot be emulated here: apt-get, dpkg, dpkg-deb missing" in capfd.readouterr().err


@not_emulated
def test_the_root_of_arm_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUCONV_ARM_ROOT", str(tmp_path / "arm"))
    made: list[Path] = []
    monkeypatch.setattr(arm, "_make", lambda folder: made.append(folder) or folder.mkdir(exist_ok=True))
    assert arm.root() == arm.root() == tmp_path / "arm/aarch64"
    monkeypatch.setattr(arm, "_requirements", lambda: ["another"])
    arm.root()
    assert made == [tmp_path / "arm/aarch64"] * 2


@not_emulated
def test_what_the_root_of_arm_holds() -> None:
    names = {re.match(r"[\w-]+", need)[0] for need in arm._requirements()}
    assert {"numba", "numpy", "pytest", "hypothesis"} <= names
    assert not names & {"torch", "openvino", "mkdocs"}


def test_slices_name_tests_that_there_are() -> None:
    assert cpus.SLICES.keys() <= {*cpus.NATIVE, *cpus.ARM}
    for parts in (*cpus.SLICES.values(), *cpus.LOWERED.values()):
        for part in parts:
            if part.startswith("--"):  # an option
                continue
            file, _, test = part.partition("[")[0].partition("::")
            assert re.search(rf"^def {test}\b" if test else "", (ROOT / file).read_text(), re.MULTILINE), part


@pytest.mark.skipif(os.name == "nt", reason="a script of a shell")
def test_the_interpreters_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm, "launcher", lambda folder, cpu: ["echo", cpu])
    script = arm.interpreter(tmp_path, "a cpu")
    said = subprocess.run([str(script), "-c", "two words"], capture_output=True, text=True, check=True).stdout
    assert said == f"a cpu {tmp_path / 'usr/bin/python3'} -c two words\n"
