"""Tuning of problems: search, trial runs in workers, timing, in one process or on many machines."""
