"""Every benchmark is listed, can be imported, and tells its options."""

from __future__ import annotations

import importlib
import sys

import pytest

from bench.__main__ import commands

LISTED = dict(commands())


def test_commands_are_listed_with_a_sentence() -> None:
    assert {"python -m bench.compare", "python -m bench.packs", "python -m bench.models"} <= LISTED.keys()
    assert "python -m bench.first" not in LISTED and "python -m bench.bench" not in LISTED
    assert all(text and not text.endswith(".") for text in LISTED.values())


@pytest.mark.parametrize("command", LISTED)
def test_a_command_tells_its_options(command: str, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    module = command.removeprefix("python -m ")
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    found = importlib.import_module(module)
    main = importlib.import_module(f"{module}.__main__").main if hasattr(found, "__path__") else found.main
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0 and f"usage: {module}" in capfd.readouterr().out
