"""ONNX's protobuf messages without the package onnx: fields, decoding, encoding, and operator definitions."""
