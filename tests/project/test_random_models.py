"""The script that judges random models: what it draws, a slice of it, and what it says of those that fail."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

import random_models as script  # noqa: E402

from cpuconv.graph.ops import TABLE  # noqa: E402
from cpuconv.graph.ops.base import Op  # noqa: E402
from support import random_models as models  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SHARES = 6


@pytest.mark.parametrize("share", range(SHARES))
def test_a_slice(share: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each operator once, with what is drawn around it."""
    count = -(-len(models.OPERATORS) // SHARES)
    assert script.main(["--first", str(share * count), "--count", str(count)]) == 0, capsys.readouterr().out


def test_a_number_is_a_model() -> None:
    for number in (3, 50, 77):
        first, again = (models.draw(number) for _ in range(2))
        assert first.model == again.model and first.feed.keys() == again.feed.keys()
        assert all(array.tobytes() == again.feed[name].tobytes() for name, array in first.feed.items())


def test_what_is_drawn_is_wide() -> None:
    drawn = [models.draw(number, ("Conv", "MatMul", "Resize", "ReduceMax")) for number in range(120)]
    assert {name for each in drawn for name in each.spoilt.split(", ")} == {"", *models.SPOILERS}
    behind = {node.op_type for each in drawn for node in each.model.graph.node}
    assert behind >= {*models.BINARY, "QuantizeLinear", "DequantizeLinear", "Clip", "Transpose", "Concat"}
    assert any(0 in array.shape for each in drawn for array in each.feed.values())


def test_what_fails_is_told_by_a_command_that_tries_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = TABLE["Sign"]
    asked = ["--ops", "Sign", "--count", "3"]
    assert script.main(asked) == 0
    monkeypatch.setitem(TABLE, "Sign", Op("Sign", row.rule, lambda node, arrays: -row.reference(node, arrays)))
    assert script.main(asked) == 1
    told = capsys.readouterr().out
    assert "python tests/random_models.py --ops Sign --first 0 --count 1\n" in told and "ONNX's evaluator" in told
