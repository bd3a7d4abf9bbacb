"""A graph made ready for inputs of certain sizes.

`steering` finds the inputs whose elements decide sizes, `specialise` computes shapes and folds constants, `tail` cuts
off nodes whose sizes are known only when the network runs; `prepared` does all that and rewrites by the passes.
"""
