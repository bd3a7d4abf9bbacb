"""Tuning results as files (wisdom), and the precedence of pinned file, store and shipped table."""
