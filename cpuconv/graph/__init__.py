"""Whole networks: read, rewritten, laid out, placed in memory, recorded and run.

A network goes through these in turn; `ir` is what it is at every stage:

- `reading`: an ONNX model becomes a graph. `elements` holds weights where they lie in the file, `limits` bounds what a
  model may ask for. `ops` is the table of operators.
- `sizes`: the graph is made ready for inputs of certain sizes, and rewritten by `passes`.
- `selection`: every node gets an offer (`lowering`), which says how its operands lie; copies go where they must.
- `running`: tensors get places (`place`) in an arena, nodes become kernel calls (`kernels`), these a recording.
- `saved`: all of this as one file.

`programs` remembers what was made for which sizes and finds how many threads are fastest (`counts`). Each program is
made from the `origin`; the part that was cut off runs `behind` it. `model` is what callers see, `handed` checks their
arrays.

Beside these, `interpret` computes any graph by the operators' references, which results are compared with; `reports`
say what became of a network and where its time goes; `asked` lists the convolutions that a warmup tunes.
"""
