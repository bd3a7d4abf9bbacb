"""LLVM IR of drivers from their Python source, in a tenth of the time that Numba's front end takes.

Drivers are Python that Numba compiles. All of their variables are int64, what they call is inlined, and a tile is a
constant: there are no types to infer. So each function is read once, as a syntax tree (`source`), and each call of it
is written into the driver that calls (`writing`). Expressions of constants are computed at once, and of an `if` on a
constant one branch alone is written (`values`). What goes beyond that (`NotInSubsetError`) Numba compiles.
"""
