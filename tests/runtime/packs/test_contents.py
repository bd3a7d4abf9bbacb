"""What packs hold: the rows of each shipped table are in the pack that serves its device, and in no other one."""

from __future__ import annotations

import json

import pytest

from bench.packs import contents
from cpuconv.conv.session import TABLES
from cpuconv.runtime.code.packs.cpu_classes import CLASSES


def test_each_shipped_table_is_of_the_class_that_serves_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for each in CLASSES:
        monkeypatch.setattr(contents, "target", lambda name=each.name: (None, name, ""))
        for key in contents.devices():
            assert key not in found
            found[key] = each
    assert found.keys() == {path.stem for path in TABLES.glob("*.json")}
    for key, each in found.items():
        (device,) = json.loads((TABLES / f"{key}.json").read_text())["devices"]
        assert each.features <= {feature.lstrip("+") for feature in device["fields"]["features"].split(",")}
