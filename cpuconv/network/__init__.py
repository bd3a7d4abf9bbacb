"""Running a network: sizes, layouts, memory, recordings, and the model that callers use.

A graph (`cpuconv.graph`) passes through these packages in turn:

- `sizes`: specialises the graph for inputs of given sizes, and rewrites it by `graph.passes`.
- `selection`: selects an offer (`graph.lowering`) per node, which fixes the form of its operands; inserts copies.
- `running`: assigns tensors to memory of an arena, lowers nodes to kernel calls, and these to a recording.
- `saved`: reads and writes all of this as one file.

A *program* is what runs for inputs of given sizes. A `program_builder` makes each one from a network's `definition` by
these packages, with the fastest number of threads (`thread_count`). The `dynamic_suffix` runs after a program, for
sizes that are known only then. `program_cache` builds each program at first use, and keeps it. `compiling` combines
these parts into a `model`, which callers use. `reports` show the layouts, algorithms and times of a network. `problems`
lists the convolutions that a warmup tunes. `ports` are inputs and outputs, with the validation of arrays. `interpret`
computes any graph by the operators' references, for comparison. `folding` limits the cost of constant folding.
"""
