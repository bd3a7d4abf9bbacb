"""OpenCV: `cv2.dnn` with its engine of OpenCV 5."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.peers.base import Form, OnnxPeer


class OpenCvPeer(OnnxPeer):
    """cv2.dnn.readNetFromONNX with ENGINE_NEW; threads are the process's."""

    name = "OpenCV"
    package = "opencv-python-headless"
    needs = ("cv2", "onnx")

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import cv2

        cv2.setNumThreads(threads)
        net = cv2.dnn.readNetFromONNX(str(path), engine=cv2.dnn.ENGINE_NEW)
        names = net.getUnconnectedOutLayersNames()
        given: list[np.ndarray] = []

        def run() -> None:
            for name, array in feed.items():
                net.setInput(array, name)
            given[:] = net.forward(names)

        return [Form("plain", run, lambda: given)]
