"""Graph stages of quantisation: preparation, planning, cross-layer equalisation, quantisation, writing to a file."""
