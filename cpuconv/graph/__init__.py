"""Graph representation of a network: nodes, constants, and shapes and dtypes of values (`ir`); and its rewrites.

- `limits` bounds the size of models.
- `ops` is the operator table, `lowering` the interface between operators and the network compiler.
- `passes` rewrite graphs.
"""
