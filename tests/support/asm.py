"""Skipping of tests that count FMAs."""

from __future__ import annotations

import pytest

from cpuconv.isa import current

needs_fma = pytest.mark.skipif(current().name in ("sse", "generic"), reason="there is no FMA instruction to count")
