"""Sources of a selection, one per file: each selects a candidate or leaves the decision to the next one."""
