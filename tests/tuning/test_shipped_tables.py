"""How old the tables are that the package ships: of the kernels as they are, or measured with older ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from autotune.machine.device import fingerprint
from autotune.wisdom.document import read
from cpuconv.conv.session import TABLES
from support.running.processes import python

OLDER = {
    "0843221d9ce186b7": "AMD EPYC (Zen 4) without AVX-512, measured on 2026-11-27",
    "581280111faea460": "Intel Xeon with AMX, measured on 2026-11-25",
}
"""Tables that were measured with older kernels and wait for a machine of their kind; any other one must be current."""

RENEW = """tune on this machine, and write the table again:
    autotune warmup bench/shapes/canonical.txt --layouts auto,auto --threads auto --effort normal
    autotune export --device-table"""
ELSEWHERE = f"""on a machine of this kind {RENEW}
or list it in `OLDER`, if none is at hand: until then its rows decide as those of tuned neighbours do"""


STALE = """
import sys
from pathlib import Path
from autotune.machine import device
from autotune.wisdom.document import read
wisdom = read(Path(sys.argv[1]))
(of,) = wisdom.devices.values()
device.fingerprint = lambda: of  # this process runs as if on the table's device
from cpuconv.conv.choice.tuned import same_kernels
from cpuconv.conv.recipe import current_sources
print(any(row.sources not in current_sources() and not same_kernels(row) for row in wisdom))
"""


def age(path: Path, environ: dict[str, str]) -> str:
    """ "current", or that some rows of a table were measured with other kernels than those of its device today."""
    wisdom = read(path)
    (device,) = wisdom.devices.values()
    target = {"NUMBA_CPU_NAME": device.cpu_name, "NUMBA_CPU_FEATURES": device.features}
    done = subprocess.run(
        python("-c", STALE, str(path)), env={**environ, **target}, capture_output=True, text=True, check=True
    )
    return "measured with older kernels" if done.stdout.strip() == "True" else "current"


def judge(name: str, found: str, here: str) -> tuple[str, str]:
    """What becomes of the test of the table of device `name` on the device `here`, and why."""
    told = f"The table {name}.json: {found}"
    if found == "current":
        return ("fails", f"{told}: take it out of `OLDER`") if name in OLDER else ("passes", told)
    if name in OLDER:
        told = f"{told} ({OLDER[name]})"
        return "is expected to fail", f"{told}; it is of this CPU: {RENEW}" if name == here else told
    return "fails", f"{told}. It is of this CPU: {RENEW}" if name == here else f"{told}: {ELSEWHERE}"


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_a_table_is_current_or_known_to_be_older(path: Path, environ: dict[str, str]) -> None:
    outcome, why = judge(path.stem, age(path, environ), fingerprint().key)
    if outcome == "fails":
        pytest.fail(why, pytrace=False)
    if outcome == "is expected to fail":
        pytest.xfail(why)


def test_older_tables_are_listed_as_long_as_they_are_shipped() -> None:
    assert OLDER.keys() <= {path.stem for path in TABLES.glob("*.json")}


def test_what_is_said_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OLDER, "listed", "measured long ago")
    stale = "measured with older kernels"
    assert judge("new", "current", "new")[0] == "passes"
    assert judge("listed", "current", "new")[0] == "fails"
    assert judge("new", stale, "other")[0] == judge("new", stale, "new")[0] == "fails"
    assert (
        "this CPU" in judge("new", stale, "new")[1]
        and "autotune export --device-table" in judge("new", stale, "new")[1]
    )
    assert "this CPU" not in judge("new", stale, "other")[1]
    assert judge("listed", stale, "other")[0] == judge("listed", stale, "listed")[0] == "is expected to fail"
    assert "autotune export --device-table" in judge("listed", stale, "listed")[1]
