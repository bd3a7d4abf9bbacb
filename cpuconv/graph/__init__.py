"""What a network is: nodes, constants and what is known of every value (`ir`), rewritten.

- `limits` bounds what a model may ask for.
- `ops` is the table of operators, `lowering` the interface between them and what runs networks.
- `passes` rewrite graphs.
"""
