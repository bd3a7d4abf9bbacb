"""A network laid out in memory, recorded and run.

`schedule` says which operators run side by side, `arena` gives every tensor a place, `executable` makes kernel calls
and `constants` of nodes (`packed` ones are shared by sizes), `recording` is the table of these calls, `caller` runs it.
"""
