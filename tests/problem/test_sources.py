"""Problems from text files and strings."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpuconv.elements import S8, S32, U8
from cpuconv.errors import SourceError
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading.sources import load
from cpuconv.problem.types import Types
from support.running.processes import ROOT

CANONICAL = ROOT / "bench" / "shapes" / "canonical.txt"


@pytest.fixture
def write(tmp_path):
    """Write a text file and give its path."""

    def file(text: str, name: str = "shapes.txt") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return file


def test_canonical_file():
    entries = load(CANONICAL)
    assert len(entries) == sum(entry.count for entry in entries) == 45
    first = entries[0]
    assert (first.label, first.network, first.count) == ("resnet50:conv1", "resnet50", 1)
    assert first.problem == ConvProblem(1, 3, 224, 224, 64, 7, 7, (2, 2), (3, 2, 3, 2))


def test_text_file_with_comments_counts_and_settings(write):
    path = write(
        "# a comment\n\n  ic8ih9oc8kh3ph1   # the first\n"
        'ic8ih9oc8kh3ph1\nic8ih9oc8kh3ph1n"net#1:b*3"\nic8ih9oc8kh1 in=NHWC act=relu threads=1\n'
    )
    entries = load(path, layouts=("NCHW8c", "NCHW44"), threads=2)
    same = ConvProblem(1, 8, 9, 9, 8, 3, 3, pads=(1, 1, 1, 1), in_layout="NCHW8c", out_layout="NCHW4c", threads=2)
    assert entries[0] == (same, same.shape_key, 2, "shapes")
    assert entries[1] == (same, "net#1:b", 3, "net#1")
    stated = ConvProblem(1, 8, 9, 9, 8, 1, 1, in_layout="NHWC", out_layout="NCHW4c", activation="relu")
    assert [entry.problem for entry in entries[2:]] == [stated]


def test_one_string():
    ((problem, label, count, network),) = load('mb2ic4ih5oc6kh3n"net:a*2"', threads=2)
    assert (problem, label, count, network) == (ConvProblem(2, 4, 5, 5, 6, 3, 3, threads=2), "net:a", 2, "net")
    typed = ConvProblem(1, 4, 5, 5, 6, 3, 3, types=Types.parse("u8:s8:u8"))
    for text in ("ic4ih5oc6kh3 --dt=u8:s8:u8", "--dt=u8:s8:u8 ic4ih5oc6kh3"):  # the second is benchdnn's order
        assert load(text)[0].problem == typed
    key = ConvProblem(1, 4, 5, 5, 6, 3, 3, in_layout="NHWC").key
    assert load(key, layouts=("NCHW", "NCHW"), threads=2)[0].problem.key == key


@pytest.mark.parametrize("source", ["missing.onnx", "no/such/file", "", "a b.txt", "x" * 5000 + ".txt", "nul\0.txt"])
def test_missing_file(source):
    with pytest.raises(SourceError, match="must be a file that exists or a problem string"):
        load(source)


def test_bad_string_says_why():
    with pytest.raises(SourceError, match="Argument 'w' must be weights whose kernel"):
        load("ic3ih8oc4kh9")
    with pytest.raises(SourceError, match="must be one of NCHW"):
        load("ic3ih8oc4kh3", layouts=("NCHW", "CHWN"))


def test_bad_line_is_numbered(write):
    with pytest.raises(
        SourceError, match=r"shapes.txt, line 3: Argument 'problem' must be a problem string that states kh"
    ):
        load(write("# fine\nic3ih8oc4kh3\nic3ih8oc4\n"))


def test_files_without_problems(write, tmp_path):
    with pytest.raises(SourceError, match="has no 2-D convolution"):
        load(write("# nothing\n"))
    with pytest.raises(SourceError, match="is a folder"):
        load(tmp_path)
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(SourceError, match="must be an .onnx file or a text file"):
        load(binary)


def test_types_where_a_line_states_none(tmp_path: Path) -> None:
    source = tmp_path / "list.txt"
    source.write_text("ic8ih4oc8kh1\nic8ih4oc8kh1 --dt=bf16:bf16:f32\n")
    plain, stated = load(str(source), types=Types.parse("u8"))
    assert plain.problem.types == Types(U8, S8, S32, U8) and str(stated.problem.types) == "bf16:bf16:f32"
