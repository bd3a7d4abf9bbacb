"""Compiled kernels of two folders compared: the code counts, not names and files."""

from __future__ import annotations

import sys

import pytest

from bench import machine_code
from cpuconv.isa import current
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.runtime.code import cache, kernel_files


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A folder with a kernel for one tile, and one with those for two."""
    lanes = current().lanes
    tiles = [GemmTile(lanes, 1, 1, cols, 1, lanes, lanes) for cols in (1, 2)]
    for name, count in (("one", 1), ("two", 2)):
        place = tmp_path / name
        place.mkdir()
        monkeypatch.setattr(kernel_files, "folder", lambda place=place: kernel_files.Folder(place))
        monkeypatch.setattr(cache, "_alive", {})  # else what another test has loaded is not compiled
        for tile in tiles[:count]:
            gemm_strip._load(tile)
    return tmp_path / "one", tmp_path / "two"


def test_equal_code_is_found_whatever_files_are_called(folders):
    one, two = folders
    for file in one.glob("*.o"):
        file.rename(file.with_name("another-name-0123.o"))
    assert machine_code.compared(two, one) == (1, [])


def test_other_code_is_listed(folders, monkeypatch, capsys):
    one, two = folders
    same, other = machine_code.compared(one, two)
    assert same == 1 and len(other) == 1 and "gemm" in other[0]
    monkeypatch.setattr(sys, "argv", ["machine_code", str(one), str(two)])
    assert machine_code.main() == 1
    assert "1 kernels have the machine code of before, 1 do not" in capsys.readouterr().out


def test_a_damaged_file_is_left_out(folders):
    one, two = folders
    for file in two.glob("*.o"):
        file.write_bytes(file.read_bytes()[:-1])
    assert machine_code.compared(one, two) == (0, [])


def test_an_empty_folder_is_refused(folders, tmp_path):
    with pytest.raises(SystemExit, match="no compiled kernels"):
        machine_code.compared(tmp_path / "nothing", folders[0])
