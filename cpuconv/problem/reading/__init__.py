"""Problems from files: ONNX models and lists of problem strings."""
