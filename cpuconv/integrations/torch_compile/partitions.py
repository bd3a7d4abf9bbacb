"""Parts of an ATen graph that this package computes; the rest stays with PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from cpuconv.reading.aten.fx_reader import adapter_of

PRODUCTS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
            "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention_for_cpu", "_weight_int8pack_mm", "_int_mm")  # fmt: skip


class Supported(OperatorSupportBase):
    """Whether a node can be computed: its operator has an adapter, and reading it did not fail."""

    def __init__(self, refused: Collection[fx.Node]) -> None:
        self.refused = refused

    def is_node_supported(self, submodules: Mapping[str, Any], node: fx.Node) -> bool:
        """Whether a node can be computed."""
        if node.op != "call_function" or node in self.refused:
            return False
        if node.target is operator.getitem:
            return self.is_node_supported(submodules, node.args[0])
        return adapter_of(node) is not None and not (is_product(node) and node.meta["val"].dtype == torch.float64)


def is_product(node: fx.Node) -> bool:
    """Whether a node is a convolution or a product of matrices."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._opname in PRODUCTS


def partitioned(module: fx.GraphModule, refused: Collection[fx.Node]) -> list[list[fx.Node]]:
    """Nodes of each part; a part has at least one product."""
    partitioner = CapabilityBasedPartitioner(module, Supported(refused), allows_single_node_partition=True)
    parts = [[*part.nodes] for part in partitioner.propose_partitions()]
    order = {node: at for at, node in enumerate(module.graph.nodes)}
    return [sorted(part, key=order.__getitem__) for part in parts if any(map(is_product, part))]
