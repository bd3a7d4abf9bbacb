"""Lowering and running a network: memory, kernel calls and recordings.

`schedule` groups operators that run concurrently, `arena` assigns memory to tensors. `building` makes the kernel calls
and `constants` of nodes (`packed` ones are shared by sizes), and an `executable`. `recording` is the table of these
calls, `execution_context` runs it.
"""
