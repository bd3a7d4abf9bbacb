"""Entry point of `python -m autotune`."""

from __future__ import annotations

import sys

from autotune.cli.entry import autotune

if __name__ == "__main__":
    sys.exit(autotune())
