"""Our own loader of object files: what LLVM writes runs, what is damaged is refused, and no memory is both writable
and executable."""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.machine import pages
from cpuconv.errors import CpuconvError
from cpuconv.runtime.code import cache
from cpuconv.runtime.code.loading import loader, object_file
from cpuconv.runtime.code.loading.object_file import Image, Malformed, Unsupported
from cpuconv.runtime.target import target_machine

linux = pytest.mark.skipif(sys.platform != "linux", reason="objects are ELF files on Linux")

# A function of a table, of constants of a vector, of the C library, and of another function here.
SOURCE = """
declare double @cbrt(double)
declare void @llvm.memset.p0i8.i64(i8*, i8, i64, i1)
@table = internal constant [4 x double] [double 1.0, double 8.0, double 27.0, double 64.0]
define internal double @looked_up(i64 %n) noinline {
  %place = getelementptr [4 x double], [4 x double]* @table, i64 0, i64 %n
  %value = load double, double* %place
  ret double %value
}
define double @compute(i64 %n, i8* %bytes, i64 %size) {
  call void @llvm.memset.p0i8.i64(i8* %bytes, i8 7, i64 %size, i1 false)
  %value = call double @looked_up(i64 %n)
  %root = call double @cbrt(double %value)
  %sum = fadd double %root, 0.3125
  ret double %sum
}
"""
WRITES = "@counter = global i64 3\ndefine i64 @f() {\n %v = load i64, i64* @counter\n ret i64 %v\n}\n"


def compiled(source: str, triple: str = "", cpu: str = "", model: str = "default", reloc: str = "static") -> bytes:
    """An object file of LLVM's; without a triple for this CPU."""
    module = llvm.parse_assembly((f'target triple = "{triple}"\n' if triple else "") + source)
    if not triple:
        return target_machine().emit_object(module)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3, reloc=reloc, codemodel=model)
    return machine.emit_object(module)


def called(code: bytes) -> None:
    address, memory = loader.load(code, "compute")
    kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    for n, root in enumerate((1, 2, 3, 4)):
        written = ctypes.create_string_buffer(300)
        assert kind(address)(n, ctypes.addressof(written), 299) == pytest.approx(root + 0.3125, rel=1e-15)
        assert written.raw == bytes([7] * 299) + b"\0"
    del memory


@linux
def test_what_the_code_generator_writes_runs() -> None:
    called(compiled(SOURCE))


@linux
@pytest.mark.parametrize("model", ["small", "large"])
def test_both_code_models_run(model: str) -> None:
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    if model == "small" and triple.startswith("x86_64"):
        source = SOURCE.replace("@looked_up(i64 %n) noinline", "@looked_up(i64 %n) noinline nounwind")
        code = compiled(source, triple, cpu, model)
        try:  # 32 bits reach a constant only where memory lies in the lowest 2 GB
            called(code)
        except Unsupported as error:
            assert "distance" in str(error)
    else:
        called(compiled(SOURCE, triple, cpu, model))


@linux
def test_no_memory_is_writable_and_executable() -> None:
    address, _memory = loader.load(compiled(SOURCE), "compute")
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights = line.split()[:2]
        first, last = (int(each, 16) for each in place.split("-"))
        if first <= address < last:
            assert rights == "r-xp"
            return
    raise AssertionError("the function lies nowhere")


@linux
def test_code_is_mapped_from_a_file_where_written_memory_may_not_be_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "may_gain_execution", lambda: False)
    before = len(list(Path("/proc/self/fd").iterdir()))
    called(compiled(SOURCE))
    address, _memory = loader.load(compiled(SOURCE), "compute")
    (line,) = (line for line in Path("/proc/self/maps").read_text().splitlines() if _holds(line, address))
    assert line.split()[1] == "r-xs" and "memfd" in line
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    del _memory
    assert not any(_holds(line, address) for line in Path("/proc/self/maps").read_text().splitlines())


def _holds(line: str, address: int) -> bool:
    first, last = (int(each, 16) for each in line.split()[0].split("-"))
    return first <= address < last


@linux
def test_where_no_memory_may_be_executed_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    code = compiled(SOURCE)
    monkeypatch.setattr(pages, "may_gain_execution", lambda: False)
    monkeypatch.setattr(cache, "may_gain_execution", lambda: False)
    with monkeypatch.context() as patch:
        patch.setattr(pages.os, "memfd_create", refused)
        with pytest.raises(CpuconvError, match="may have no executable memory.*not permitted"):
            cache.load_object(code, "compute")
    monkeypatch.setattr(loader, "_placed", lambda *_: (_ for _ in ()).throw(Unsupported("a relocation")))
    with pytest.raises(CpuconvError, match="MemoryDenyWriteExecute"):
        cache.load_object(code, "compute")


@linux
def test_no_memory_is_both_and_pages_of_an_empty_file_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open("rb") as file, pytest.raises(OSError, match="cannot be mapped"):
        pages.Pages(file.fileno(), 0)


def test_what_needs_a_whole_linker_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="written"):
        object_file.read(compiled(WRITES, "x86_64-unknown-linux-gnu", "haswell"))
    with pytest.raises(Unsupported, match="no ELF file"):
        object_file.read(compiled(SOURCE, "x86_64-apple-darwin", "haswell"))


@linux
def test_code_of_another_architecture_and_unknown_symbols_are_unsupported() -> None:
    other = "aarch64-unknown-linux-gnu" if loader._own() == object_file.X86 else "x86_64-unknown-linux-gnu"
    with pytest.raises(Unsupported, match="architecture"):
        loader.load(compiled(SOURCE, other), "compute")
    with pytest.raises(loader.Missing, match="no_such_function"):
        loader.load(compiled(SOURCE.replace("cbrt", "no_such_function")), "compute")
    with pytest.raises(Malformed, match="calculate"):
        loader.load(compiled(SOURCE), "calculate")


@linux
def test_llvm_loads_what_the_loader_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise Unsupported("a relocation that no kernel has")

    code = compiled(SOURCE)
    monkeypatch.setattr(loader, "_placed", refused)
    for load in (cache.load_object, cache.link_object):
        kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64)
        assert load(code, "compute").function(kind)(3, b"", 0) == 4.3125


# --- Arm's relocations, which this CPU may not run -------------------------------------------------------------------

ARM_SOURCE = SOURCE.replace("fadd double %root, 0.3125", "fadd double %root, 0x3FF123456789ABCD")
BASE = 0x1234_5678_9000


def words(memory: bytes, image: Image) -> list[int]:
    return list(struct.unpack_from(f"<{image.offset('compute') // 4 + 60}I", memory))


def test_addresses_of_arm_are_put_together_from_four_parts() -> None:
    image = object_file.read(compiled(ARM_SOURCE, "aarch64-unknown-linux-gnu", "cortex-a76", "large"))
    memory = image.at(BASE, {"cbrt": 0x7F00_1111_2222, "memset": 0x7F00_3333_4444})
    registers: dict[int, int] = {}
    made = set()
    for word in words(memory, image):  # movz and movk, as Arm's manual encodes them
        if word >> 23 in (0b110100101, 0b111100101):
            register, part = word & 31, word >> 21 & 3
            kept = registers.get(register, 0) if word >> 23 == 0b111100101 else 0
            registers[register] = kept & ~(0xFFFF << 16 * part) | (word >> 5 & 0xFFFF) << 16 * part
            made.add(registers[register])
    (table,) = struct.iter_unpack("<d", struct.pack("<d", 8.0))
    places = {place for place in range(0, image.size, 8) if struct.unpack_from("<d", memory, place) == table}
    assert {BASE + place - 8 for place in places} & made  # the table begins before 8.0
    _branches_lead_to_veneers(image, memory)


def test_addresses_of_arm_are_pages_and_what_lies_in_them() -> None:
    image = object_file.read(compiled(ARM_SOURCE, "aarch64-unknown-linux-gnu", "cortex-a76", "small"))
    memory = image.at(BASE, {"cbrt": 0x7F00_1111_2222, "memset": 0x7F00_3333_4444})
    pages: dict[int, int] = {}
    loaded, made = [], []
    for index, word in enumerate(words(memory, image)):
        if word & 0x9F000000 == 0x90000000:  # adrp
            distance = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
            distance -= (distance & 1 << 20) << 1
            pages[word & 31] = ((BASE + 4 * index) >> 12 << 12) + (distance << 12)
        elif word & 0xFFC00000 == 0xFD400000:  # ldr of 8 bytes
            loaded.append(pages[word >> 5 & 31] + 8 * (word >> 10 & 0xFFF))
        elif word & 0xFFC00000 == 0x91000000 and (register := word >> 5 & 31) in pages:  # add
            pages[word & 31] = pages[register] + (word >> 10 & 0xFFF)
            made.append(pages[word & 31])
    constant = struct.pack("<Q", 0x3FF123456789ABCD)
    assert any(memory[place - BASE : place - BASE + 8] == constant for place in loaded)
    table = struct.pack("<2d", 1.0, 8.0)
    assert any(memory[place - BASE : place - BASE + 16] == table for place in made)
    _branches_lead_to_veneers(image, memory)


OTHERS = "@value = external global i64\ndefine i64 @f() {\n %v = load i64, i64* @value\n ret i64 %v\n}\n"


@pytest.mark.parametrize("model", ["small", "large"])
def test_addresses_of_others_lie_in_slots_on_arm(model: str) -> None:
    options = "aarch64-unknown-linux-gnu", "cortex-a76", model, "pic"
    image = object_file.read(compiled(OTHERS, *options))
    memory = image.at(BASE, {"value": 0x7F00_1111_2222})
    start = image.offset("f")
    page, load = struct.unpack_from("<2I", memory, start)
    assert page & 0x9F000000 == 0x90000000 and load & 0xFFC00000 == 0xF9400000  # adrp, ldr of 8 bytes
    assert load >> 5 & 31 == page & 31
    distance = (page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3
    place = (BASE + start >> 12 << 12) + (distance << 12) + 8 * (load >> 10 & 0xFFF)
    assert struct.unpack_from("<Q", memory, place - BASE) == (0x7F00_1111_2222,)
    with pytest.raises(Unsupported, match="slot"):
        object_file.read(compiled(OTHERS.replace("external global i64", "constant i64 3"), *options))


def _branches_lead_to_veneers(image: Image, memory: bytes) -> None:
    targets = set()
    for index, word in enumerate(words(memory, image)):
        if word >> 26 in (0b100101, 0b000101):  # bl, b
            distance = word & 0x3FFFFFF
            place = 4 * (index + distance - ((distance & 1 << 25) << 1))
            if 0 <= place <= image.size - 16 and struct.unpack_from("<2I", memory, place) == (0x58000050, 0xD61F0200):
                targets.add(struct.unpack_from("<Q", memory, place + 8)[0])
    assert targets == {0x7F00_1111_2222, 0x7F00_3333_4444}


def test_what_is_too_far_away_is_unsupported() -> None:
    far = "declare void @g()\ndefine void @f() {\n call void @g()\n ret void\n}\n"
    image = object_file.read(compiled(far, "x86_64-unknown-linux-gnu", "haswell", "small"))
    memory = image.at(BASE, {"g": 1 << 46})  # by a veneer
    assert struct.pack("<Q", 1 << 46) in bytes(memory)
    taken = """
@t = internal constant [9 x i64] zeroinitializer
define i64* @f(i64 %n) {
  %p = getelementptr [9 x i64], [9 x i64]* @t, i64 0, i64 %n
  ret i64* %p
}
"""
    image = object_file.read(compiled(taken, "x86_64-unknown-linux-gnu", "haswell", "small"))
    with pytest.raises(Unsupported, match="distance"):
        image.at(BASE, {})


# --- damage ----------------------------------------------------------------------------------------------------------

GOOD = compiled(SOURCE, "x86_64-unknown-linux-gnu", "haswell", "large")


def read_or_refuse(content: bytes) -> bool:
    """Whether a file is read; what is read has its function in its memory, which is no longer than it says."""
    try:
        image = object_file.read(content)
        start = image.offset("compute")
        memory = image.at(BASE, dict.fromkeys(image.names, 1 << 40))
    except (Malformed, Unsupported):
        return False
    assert len(memory) == image.size and 0 <= start <= image.size
    return True


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(1, len(GOOD)))
def test_damaged_files_are_refused_or_read(place: int, byte: int, length: int) -> None:
    changed = bytearray(GOOD)
    changed[place] = byte
    read_or_refuse(bytes(changed))
    read_or_refuse(bytes(changed[:length]))
    assert read_or_refuse(GOOD) and not read_or_refuse(GOOD[: length // 2])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 63), st.integers(0, 0xFFFFFFFF))
def test_any_header_is_refused_or_read(rest: bytes, place: int, number: int) -> None:
    assert not read_or_refuse(b"\x7fELF\x02\x01" + rest)
    changed = bytearray(GOOD)
    struct.pack_into("<I", changed, len(GOOD) - 4 - (place * 16) % (len(GOOD) // 2), number)
    read_or_refuse(bytes(changed))
