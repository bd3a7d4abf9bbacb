"""Adapters to the interfaces of other projects: ONNX Runtime's session, and the ONNX package's backend."""
