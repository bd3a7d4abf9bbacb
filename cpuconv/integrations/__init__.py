"""Networks behind the interfaces that other programs call: ONNX Runtime's session, and the ONNX package's backend."""
