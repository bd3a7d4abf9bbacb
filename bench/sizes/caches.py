"""Kernel caches of measured processes: an empty one, the user's own, or an empty one without the package's packs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from baselib.paths import VARIABLE, cache_folder
from cpuconv.runtime.code.packs import active_pack

CACHES = {
    "empty": "the package's packs and an empty cache, as after installing a wheel",
    "own": "the user's cache as it is, and the package's packs",
    "none": "no packs and an empty cache, as in a clone",
}
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def environment(cache: str) -> Iterator[dict[str, str]]:
    """Yield environment variables of a process with such a temporary cache; the process imports this checkout."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path}
    if cache == "none":
        variables[active_pack.VARIABLE] = active_pack.OFF
    if cache == "own":
        yield variables
        return
    with tempfile.TemporaryDirectory(prefix="bench-sizes-", ignore_cleanup_errors=True) as folder:
        yield {**variables, VARIABLE: folder}


def kernel_files(variables: dict[str, str]) -> int:
    """Return the number of kernels in the cache of such a process."""
    folder = Path(variables[VARIABLE]) if VARIABLE in variables else cache_folder()
    return sum(1 for _ in folder.glob("kernels/*/*.o"))


def pack_title() -> str:
    """Describe the pack of this machine, or why there is none."""
    served = active_pack.current()
    return f"pack of {served.cpu}" if served.part is not None else f"no pack: {served.why}"
