"""How a network runs: sizes, layouts, memory, recordings, and what callers do with it.

A graph (`cpuconv.graph`) goes through these in turn:

- `sizes`: the graph is made ready for inputs of certain sizes, and rewritten by `graph.passes`.
- `selection`: every node gets an offer (`graph.lowering`), which says how its operands lie; copies go where they must.
- `running`: tensors get places in an arena, nodes become kernel calls, these a recording.
- `saved`: all of this as one file.

A *program* is what runs for inputs of certain sizes. A `program_builder` goes from a network's `definition` through
these rooms to each, on as many threads as are fastest (`thread_count`); the `dynamic_suffix` is what runs after it, for
sizes that it finds. `programs` asks for each when it is needed first, and remembers it. `compiling` puts all of that
together into a `model`, which is what callers see. `reports` say what became of a network and where its time goes;
`problems` lists the convolutions that a warmup tunes; `ports` are inputs and outputs, and the checks of arrays.
`interpret` computes any graph by the operators' references, which results are compared with, and `folding` bounds what
is computed of constants.
"""
