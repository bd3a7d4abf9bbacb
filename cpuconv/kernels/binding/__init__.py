"""What a kernel call is before it has addresses: steps, operands, places, how work is cut and what it costs."""
