"""The README and the pages: their links lead somewhere, their examples and commands work."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import autotune.cli.main
import cpuconv
import cpuconv.cli.main
from cpuconv.graph.ops import OWN, TABLE
from cpuconv.graph.passes import NAMES
from cpuconv.reading.onnx_reader import OLDEST
from support.running.processes import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md"])
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"^(make|autotune|cpuconv) (\w+)", re.MULTILINE)
COMMANDS = {"autotune": autotune.cli.main.main, "cpuconv": cpuconv.cli.main.main}


def blocks(page: str, language: str = "") -> list[str]:
    """The blocks of code of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block for kind, block in found if kind == language]


def commands(page: str) -> str:
    """The blocks of commands of a page, as one."""
    return "\n".join(blocks(page, "sh") + blocks(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_is_short():
    assert len(README.splitlines()) < 150


def test_the_example_of_low_precision_is_right() -> None:
    names: dict = {}
    exec(blocks("docs/low-precision.md", "python")[0], names)
    assert (names["y"].dtype, names["y8"].dtype) == (names["bf16"], np.uint8)
    assert (names["plan"](names["x8"]) == names["y8"]).all()
    real = cpuconv.conv2d(names["x"].astype(np.float32), names["w"].astype(np.float32), padding=1)
    for near in (names["y"].astype(np.float32), names["y8"].astype(np.float32) - 128):
        assert np.abs(near - real).max() < 0.05 * np.abs(real).max()


@pytest.mark.parametrize("page", ["README.md", "docs/models.md", "docs/tuning.md", "docs/wisdom.md", "CONTRIBUTING.md"])
def test_commands_exist(page, capsys):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    found = COMMAND.findall(commands(page))
    assert found
    for program, name in set(found):
        if program == "make":
            assert name in targets
        else:
            with pytest.raises(SystemExit) as ended:
                COMMANDS[program]([name, "--help"])
            assert ended.value.code == 0, name


def _tables():
    """The script that writes generated tables."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


TABLES = _tables()


def test_the_page_of_models_lists_every_operator_and_rewrite_once():
    listed = re.findall(r"`(\w+)`", TABLES.operators())
    assert sorted(listed) == sorted(TABLE.keys() - OWN)
    assert re.findall(r"^\| `(\w+)` \| \S", TABLES.rewrites(), re.MULTILINE) == list(NAMES)


@pytest.mark.parametrize("path", TABLES.PAGES, ids=lambda path: path.stem)
def test_generated_tables_are_those_of_the_code(path: Path):
    page = path.read_text(encoding="utf-8")
    assert all(table() in page for table in TABLES.PAGES[path].values())
    assert TABLES.filled(path) == page, "run python docs/tables.py"


def test_the_oldest_opset_is_stated_alike():
    said = [
        int(number)
        for text in (
            *ROOT.glob("docs/*.md"),
            ROOT / "cpuconv" / "api" / "network.py",
            ROOT / "cpuconv" / "quantizing" / "quantize.py",
        )
        for number in re.findall(r"opset (\d+) (?:and|or) newer", text.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert len(said) >= 3 and set(said) == {OLDEST}


@pytest.mark.parametrize("name", [name for name in cpuconv.__all__ if inspect.isfunction(getattr(cpuconv, name))])
def test_the_documentation_of_a_call_names_all_its_parameters(name):
    call = getattr(cpuconv, name)
    sections = re.findall(r"^Parameters\n-+\n(.*?)(?:\n\n|\Z)", inspect.getdoc(call), re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^(\w.*?)(?: :|$)", "\n".join(sections), re.MULTILINE)
    named = {parameter for line in lines for parameter in line.split(", ")}
    assert named == set(inspect.signature(call).parameters)


def test_the_example_of_an_operator_is_its_code():
    (example,) = [block for block in blocks("CONTRIBUTING.md") if "# cpuconv/graph/ops/" in block]
    parts = re.split(r"^# (\S+)\n", example, flags=re.MULTILINE)
    for file, part in zip(parts[1::2], parts[2::2], strict=True):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert [piece for piece in part.strip("\n").split("\n\n") if piece not in source] == []


def test_the_home_page_links_to_every_page():
    home = ROOT / "docs" / "index.md"
    linked = {(home.parent / target).resolve() for target in LINK.findall(home.read_text(encoding="utf-8"))}
    pages = {*ROOT.glob("docs/*.md"), *ROOT.glob("docs/performance/*.md")} - {home}
    assert sorted(pages - linked) == []


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: cpuconv\.(?:\w+\.)*(\w+)$", text, re.MULTILINE)) == sorted(cpuconv.__all__)
