"""The problems of an ONNX file: those that its compiled network asks for, and those that its own nodes state."""
