"""A graph made ready for inputs of certain sizes.

Elements may decide sizes in two ways. `shape_inputs` finds the inputs that say them, as the shape of a Reshape does: a
program has these as constants. `cutting` cuts off nodes whose sizes are found when the network runs, as those of a
NonZero are. Between the two `specialise` computes shapes and folds constants; `prepared` does all that but the first,
and rewrites by the passes.
"""
