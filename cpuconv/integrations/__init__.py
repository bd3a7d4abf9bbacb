"""Adapters to the interfaces of other projects: ONNX Runtime's session, the ONNX package's backend, `torch.compile`."""
