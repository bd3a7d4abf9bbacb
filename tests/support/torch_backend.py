"""Registration of the backend of `torch.compile`, for environments in which the package was installed without it."""

from __future__ import annotations

NAME = "cpuconv"


def register() -> None:
    """Register the backend by its name, unless torch finds the package's entry point."""
    import torch

    from cpuconv.integrations.torch_compile.backend import compile_graph

    if NAME not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(compile_graph, name=NAME)
