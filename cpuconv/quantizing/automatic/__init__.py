"""Bytes among the precisions that are chosen by measurement."""
