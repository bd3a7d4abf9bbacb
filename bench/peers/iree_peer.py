"""IREE: ONNX files compiled for this CPU by LLVM, run on one or all cores."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.base import Form, OnnxPeer

_OPSET = "17"
_FOR_HOST = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")


class IreePeer(OnnxPeer):
    """iree.runtime with `local-sync` for one thread, else `local-task`."""

    name = "IREE"
    package = "iree-base-runtime"
    needs = ("iree.runtime", "iree.compiler", "onnx")

    def converted(self, path: Path, folder: Path) -> Path:
        text, made = folder / f"{path.stem}.mlir", folder / f"{path.stem}.vmfb"
        tools = Path(sysconfig.get_path("scripts"))
        importing = [tools / "iree-import-onnx", path, "--opset-version", _OPSET, "-o", text]
        compiling = [tools / "iree-compile", text, *_FOR_HOST, "--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
        for command in (importing, [*compiling, "-o", made]):
            subprocess.run([str(word) for word in command], check=True, capture_output=True)
        return made

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import iree.runtime as iree

        config = iree.Config("local-sync" if threads == 1 else "local-task")
        module = iree.VmModule.copy_buffer(config.vm_instance, path.read_bytes())
        context = iree.SystemContext(config=config)
        context.add_vm_module(module)
        functions = getattr(context.modules, module.name)
        function = functions[next(name for name in module.function_names if name[0] != "_" and "$" not in name)]
        inputs = [iree.asdevicearray(config.device, array) for array in feed.values()]
        given: list[Any] = []

        def run() -> None:
            given[:] = [function(*inputs)]

        def outputs() -> list[np.ndarray]:
            (found,) = given
            return [np.asarray(each) for each in (found if isinstance(found, (tuple, list)) else (found,))]

        return [Form("plain", run, outputs)]
