"""Layout planning: select an offer per node of a network, and thereby the form of each tensor.

`planning` selects by the cost models. `layout` inserts copies where a reader needs another form. `winners` stores the
selections that were fastest in whole runs. `decisions` is the serialised form of a selection.
"""
