"""ONNX models read into graphs of the newest opset's operators; weights stay where they lie in the file.

`onnx_reader` reads, `adapters` rewrite what older opsets wrote otherwise, `contrib` and its families what the domain
com.microsoft has of its own; `foreign` operators are computed by ONNX's evaluator, if `evaluated` lists them, `schemas`
are ONNX's definitions of operators. `tensors` finds the elements of constants.
"""
