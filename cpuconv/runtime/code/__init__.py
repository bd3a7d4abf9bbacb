"""Machine code found, compiled, kept on disk and in memory, and the stamps that tell what it was made from."""
