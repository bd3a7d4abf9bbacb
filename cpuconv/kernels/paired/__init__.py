"""MatMul of two activations in 16 bits (bfloat16, int16), by instructions that multiply and add pairs of elements."""
