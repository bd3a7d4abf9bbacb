"""ONNX's messages, without the package onnx: what they hold, how their bytes are read and written, what ONNX says of
operators."""
