"""Saved models: one file that holds a network, what was chosen for it, and its weights, raw and packed.

`container` is the file: a header and blocks of bytes. `encoding` writes graphs as plain values. `network` says what the
header of a model holds.
"""
