"""A single convolution, from its arguments to an executable plan."""
