"""Instruction order for in-order Arm cores: a model of their pipeline, and list scheduling of machine code by it."""
