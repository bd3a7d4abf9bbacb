"""Functions of numbers: what each means, whatever it is computed by."""
