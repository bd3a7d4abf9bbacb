"""Every example of the README and the pages runs by itself, and prints what the page says."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from support.running.processes import ROOT
from support.torch_backend import register

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/performance/*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    pytest.param(code, printed, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, (code, printed) in enumerate(SNIPPET.findall(page.read_text(encoding="utf-8")))
]
MODEL = """g (float[1,3,224,224] images) => (float[1,8] logits)
    <float[8,3,4,4] w, float[8] b>
    {
        c = Conv<strides = [4, 4]>(images, w, b)
        r = Relu(c)
        m = GlobalAveragePool(r)
        logits = Flatten(m)
    }"""


@pytest.fixture
def folder_with_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the model.onnx of the examples."""
    onnx = pytest.importorskip("onnx")
    from bench.networks.model import drawn, replace
    from support.graphs import parse

    model, rng = parse(MODEL), np.random.default_rng(3)
    replace(model, {"w": drawn(rng, (8, 3, 4, 4)), "b": drawn(rng, (8,))})
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code, printed", SNIPPETS)
def test_it_runs_by_itself(code, printed, folder_with_a_model, monkeypatch, capsys):
    for name in modules(code):
        pytest.importorskip(name)
    if "torch" in modules(code):
        register()
    if "onnxruntime" in sys.modules:  # which an example changes
        onnxruntime = sys.modules["onnxruntime"]
        monkeypatch.setattr(onnxruntime, "InferenceSession", onnxruntime.InferenceSession)
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})
    if printed:
        assert capsys.readouterr().out == printed


def modules(code: str) -> set[str]:
    """The modules that a snippet imports."""
    nodes = list(ast.walk(ast.parse(code)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_there_are_snippets():
    assert len(SNIPPETS) > 10 and any(each.values[1] for each in SNIPPETS)
