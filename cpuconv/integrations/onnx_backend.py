"""ONNX backend (`onnx.backend.base`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from cpuconv.api import network as api
from cpuconv.errors import SourceError
from cpuconv.network.model import Model
from cpuconv.reading.onnx_reader import read


class Prepared(BackendRep):
    """A compiled model.

    Attributes
    ----------
    model : Model
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **ignored: Any) -> tuple[np.ndarray, ...]:
        """Run the model.

        Parameters
        ----------
        inputs : sequence of array, a mapping of str to array, or one array
            Arrays in the order of the model's inputs.

        Returns
        -------
        tuple of numpy.ndarray
            Results in the order of the model's outputs; also by name, as in ``outputs["y"]``.
        """
        if not isinstance(inputs, Mapping):
            arrays = [inputs] if isinstance(inputs, np.ndarray) else inputs
            inputs = {port.name: array for port, array in zip(self.model.inputs, arrays, strict=True)}
        results = self.model.run(inputs)
        names = [port.name for port in self.model.outputs]
        return namedtupledict("Outputs", names)(*(results[name] for name in names))


class CpuconvBackend(Backend):
    """ONNX backend that runs models on the CPU; keyword arguments are those of `cpuconv.compile`."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **ignored: Any) -> bool:
        """Whether the model can be read: all its tensors are numeric, and ONNX knows its operators."""
        try:
            read(model)
        except SourceError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> Prepared:
        """Compile a model.

        Raises
        ------
        onnx.checker.ValidationError, SourceError
            The model is invalid, or is not supported.
        """
        super().prepare(model, device)
        return Prepared(api.compile(read(model), **options))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[np.ndarray],
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> tuple[np.ndarray, ...]:
        """Run one node, of the newest opset unless `opset_version` is passed."""
        opset = options.pop("opset_version", onnx.defs.onnx_opset_version())
        super().run_node(node, inputs, device, outputs_info, opset_version=opset)
        names = [name for name in node.input if name]
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, inputs, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "node", given, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        return Prepared(api.compile(read(model), **options)).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device such as ``CPU`` or ``CPU:0`` is the CPU."""
        return device.partition(":")[0].upper() == "CPU"


is_compatible = CpuconvBackend.is_compatible
prepare = CpuconvBackend.prepare
run_model = CpuconvBackend.run_model
run_node = CpuconvBackend.run_node
supports_device = CpuconvBackend.supports_device
