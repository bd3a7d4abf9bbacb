"""The README and the pages: their links lead somewhere, their examples and commands work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cpuconv
from autotune.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md"])
SCREEN = 45  # lines
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"^(make|autotune) (\w+)", re.MULTILINE)


def code(page: str, language: str = "") -> str:
    """The blocks of code of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_fits_three_screens():
    assert len(README.splitlines()) <= 3 * SCREEN


@pytest.mark.parametrize("page", ["README.md", "docs/calls.md"])
def test_the_example_runs(page, capsys):
    names: dict = {}
    exec(code(page, "python"), names)
    assert names["plan"](names["x"]).shape == (1, 128, 56, 56)


@pytest.mark.parametrize("page", ["README.md", "docs/tuning.md", "docs/wisdom.md", "CONTRIBUTING.md"])
def test_commands_exist(page, capsys):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = COMMAND.findall(code(page))
    assert commands
    for program, name in set(commands):
        if program == "make":
            assert name in targets
        else:
            with pytest.raises(SystemExit) as ended:
                main([name, "--help"])
            assert ended.value.code == 0, name


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: cpuconv\.(?:\w+\.)?(\w+)$", text, re.MULTILINE)) == sorted(cpuconv.__all__)
