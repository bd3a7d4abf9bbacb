"""Products of two tensors of a run whose numbers become 16 bits, two of which one instruction multiplies and adds."""
