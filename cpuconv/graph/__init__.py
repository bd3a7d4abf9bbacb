"""Whole networks: read, rewritten, laid out, placed in memory, recorded and run.

A network goes through these in turn; `ir` is what it is at every stage:

- `reading`: an ONNX model becomes a graph. `elements` holds weights where they lie in the file, `limits` bounds what a
  model may ask for. `ops` is the table of operators.
- `sizes`: the graph is made ready for inputs of certain sizes, and rewritten by `passes`.
- `selection`: every node gets an offer (`lowering`), which says how its operands lie; copies go where they must.
- `running`: tensors get places (`place`) in an arena, nodes become kernel calls (`kernels`), these a recording.
- `saved`: all of this as one file.

A *program* is what runs for inputs of certain sizes. `programs` makes each from the `definition` of the network when it
is asked for first, on as many threads as are fastest (`thread_count`), and remembers it; the `tail` is what runs after
it, for sizes that it finds. `model` is what callers see, `ports` its inputs and outputs and the checks of arrays.

Beside these, `interpret` computes any graph by the operators' references, which results are compared with; `reports`
say what became of a network and where its time goes; `problems` lists the convolutions that a warmup tunes.
"""
