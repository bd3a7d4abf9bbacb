"""Convolution problems of an ONNX file: those of its compiled network, and those that its nodes state."""
