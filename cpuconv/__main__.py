"""`python -m cpuconv`."""

from __future__ import annotations

import sys

from cpuconv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
