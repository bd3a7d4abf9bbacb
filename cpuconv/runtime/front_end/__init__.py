"""Front end for drivers: LLVM IR from Python source, in a tenth of the time of Numba's front end.

Drivers are Python functions that Numba can compile too. All their variables are int64, all calls are inlined, and the
tile is a constant, so there are no types to infer. Each function is parsed once into a syntax tree (`source`), and each
call of it is written into the calling driver (`writing`). Constant expressions are folded, and of an `if` on a constant
only one branch is written (`values`). Numba compiles what exceeds this subset (`NotInSubsetError`).
"""
