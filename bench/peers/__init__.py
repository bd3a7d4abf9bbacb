"""The engines, one file each; an engine is imported only in the process that runs it."""

from __future__ import annotations

import importlib

from bench.peers.base import Peer

CPUCONV = "cpuconv"
OWN_F32 = "own-fp32"  # cpuconv in float32, in comparisons of other types: not a peer, but with its own ratio

PEERS = {
    CPUCONV: "bench.peers.cpuconv_peer:CpuconvPeer",
    OWN_F32: "bench.peers.cpuconv_peer:OwnFloat32Peer",
    "torch": "bench.peers.torch_peer:TorchPeer",
    "onnxruntime": "bench.peers.onnxruntime_peer:OnnxRuntimePeer",
    "openvino": "bench.peers.openvino_peer:OpenVinoPeer",
    "ncnn": "bench.peers.ncnn_peer:NcnnPeer",
    "mnn": "bench.peers.mnn_peer:MnnPeer",
    "iree": "bench.peers.iree_peer:IreePeer",
    "litert": "bench.peers.litert_peer:LiteRtPeer",
    "opencv": "bench.peers.opencv_peer:OpenCvPeer",
    "tvm": "bench.peers.tvm_peer:TvmPeer",
}


def make(key: str, **options: object) -> Peer:
    """Make the peer of a key in `PEERS`, or of `module:Class`, with options."""
    module, _, name = PEERS.get(key, key).partition(":")
    return getattr(importlib.import_module(module), name)(**options)
