"""Processes that tests start believe in the CPU that the tests do (`support.lowered`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from support import lowered  # noqa: E402

lowered.install()
