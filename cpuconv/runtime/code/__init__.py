"""Machine code found, compiled, kept on disk and in memory; `sources` tells what it was made from."""
