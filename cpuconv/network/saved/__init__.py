"""Saved models: one file that holds a network, what was chosen for it, and its weights, raw and packed.

`container` is the file: a header and blocks of bytes. `encoding` writes graphs as plain values, and reads them.
`program` says what is kept beside a graph; `writing` and `reading` put it all together.
"""
