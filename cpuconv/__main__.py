"""Entry point of `python -m cpuconv`."""

from __future__ import annotations

import sys

from autotune.cli.entry import cpuconv

if __name__ == "__main__":
    sys.exit(cpuconv())
