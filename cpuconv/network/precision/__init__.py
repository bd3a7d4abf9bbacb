"""Precisions of single operators, chosen by measured errors and time."""
