"""Kernel calls before they are bound to memory: steps, operands, tensors in memory, partition of work, and cost."""
