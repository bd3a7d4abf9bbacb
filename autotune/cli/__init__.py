"""Commands of `autotune`."""
