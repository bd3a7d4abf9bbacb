"""Which offer each node of a network takes, and so how every tensor lies.

`planning` selects by the models of cost, `layout` puts copies where a reader needs another layout; `winners` knows the
selections that were fastest in whole runs, and `decisions` are a selection as it is kept.
"""
