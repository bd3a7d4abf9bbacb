"""Specialise and rewrite a graph for inputs of given sizes.

Elements of tensors may decide sizes in two ways. `shape_inputs` finds inputs whose elements are sizes, such as the
shape of a Reshape; they become constants of a program. `cutting` cuts off nodes whose sizes are known only at run time,
such as those of a NonZero. `specialise` infers shapes and folds constants. `prepared` combines these steps, except
`shape_inputs`, and applies the rewrites.
"""
