"""The engines, one file each; they are imported only in the process that runs them."""

from __future__ import annotations

import importlib

from bench.peers.base import Peer

OURS = "cpuconv"
OWN_F32 = "own-fp32"  # ours in float32 beside ours in other types: no peer, but a ratio of its own

PEERS = {
    OURS: "bench.peers.cpuconv_peer:CpuconvPeer",
    OWN_F32: "bench.peers.cpuconv_peer:OwnFloat32Peer",
    "torch": "bench.peers.torch_peer:TorchPeer",
    "onnxruntime": "bench.peers.onnxruntime_peer:OnnxRuntimePeer",
    "openvino": "bench.peers.openvino_peer:OpenVinoPeer",
    "ncnn": "bench.peers.ncnn_peer:NcnnPeer",
    "mnn": "bench.peers.mnn_peer:MnnPeer",
}


def make(key: str, **options: object) -> Peer:
    """The peer of a key in `PEERS`, or of `module:Class`, made with its options."""
    module, _, name = PEERS.get(key, key).partition(":")
    return getattr(importlib.import_module(module), name)(**options)
