"""The folder of compiled kernels that the tests of a session and the processes that they start share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

KEPT = os.environ.get("CPUCONV_TEST_CACHE")
"""Names a folder that outlives the session; without it kernels start cold."""
CACHE = Path(KEPT).absolute() if KEPT else Path(tempfile.mkdtemp(prefix="cpuconv-tests-"))
