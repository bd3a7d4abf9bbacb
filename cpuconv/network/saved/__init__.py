"""Saved models: one file with a network, its selected layouts and algorithms, and its weights, raw and packed.

`container` is the file format: a header and blocks of bytes. `encoding` converts graphs to plain values and back.
`program` defines what is stored in addition to a graph. `writing` and `reading` combine these parts.
"""
