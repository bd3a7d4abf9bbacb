"""How a network runs: sizes, layouts, memory, recordings, and what callers do with it.

A graph (`cpuconv.graph`) goes through these in turn:

- `sizes`: the graph is made ready for inputs of certain sizes, and rewritten by `graph.passes`.
- `selection`: every node gets an offer (`graph.lowering`), which says how its operands lie; copies go where they must.
- `running`: tensors get places in an arena, nodes become kernel calls, these a recording.
- `saved`: all of this as one file.

A *program* is what runs for inputs of certain sizes. `programs` makes each from the `definition` of the network when it
is asked for first, on as many threads as are fastest (`thread_count`), and remembers it; the `dynamic_suffix` is what
runs after it, for sizes that it finds. `model` is what callers see. `reports` say what became of a network and where
its time goes; `problems` lists the convolutions that a warmup tunes.
"""
