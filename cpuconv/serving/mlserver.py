"""Runtime for MLServer, which serves models by KServe's V2 inference protocol (REST and gRPC).

In `model-settings.json`, `"implementation": "cpuconv.serving.mlserver.CpuconvRuntime"`; `parameters.uri` names an ONNX
file or a saved model, and `parameters.extra` has options of `cpuconv.compile` or `cpuconv.load`. With MLServer's
adaptive batching (`max_batch_size`, `max_batch_time`), the option `batches` lets programs run every batch it makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.codecs.numpy import to_datatype
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from mlserver.utils import get_model_uri

import cpuconv
from cpuconv.network.ports import Port
from cpuconv.network.saved.container import is_saved

_OPEN = -1  # the protocol's size of an axis of any length


class CpuconvRuntime(MLModel):
    """A model of MLServer: requests run concurrently, in `Model.streams` threads."""

    async def load(self) -> bool:
        """Compile or load the model; return whether it is ready."""
        path = await get_model_uri(self._settings)
        options: dict[str, Any] = dict(self._settings.parameters.extra or {})
        make: Any = cpuconv.load if is_saved(path) else cpuconv.compile
        self._model: cpuconv.Model = await asyncio.to_thread(make, path, **options)
        self.inputs, self.outputs = _metadata(self._model.inputs), _metadata(self._model.outputs)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run the model on a request's tensors.

        Raises
        ------
        InferenceError
            An input has a wrong name, shape or type, or an output is unknown: status 400 of HTTP.
        """
        try:
            feed = {entry.name: NumpyCodec.decode_input(entry) for entry in payload.inputs}
            results = await self._model.run_async(feed)
            names = [entry.name for entry in payload.outputs] if payload.outputs else [*results]
            outputs = [NumpyCodec.encode_output(name, np.asarray(results[name])) for name in names]
        except KeyError as error:
            raise InferenceError(f"{self.name} has no output {error}.") from error
        except (cpuconv.CpuconvError, ValueError) as error:  # ValueError: data that do not fill the stated shape
            raise InferenceError(str(error)) from error
        return InferenceResponse(id=payload.id, model_name=self.name, model_version=self.version, outputs=outputs)


def _metadata(ports: Sequence[Port]) -> list[MetadataTensor]:
    return [
        MetadataTensor(
            name=port.name,
            datatype=to_datatype(np.dtype(port.dtype)),
            shape=[size if isinstance(size, int) else _OPEN for size in port.shape or ()],
        )
        for port in ports
    ]
