"""Reader of ONNX models; graphs have the operators of the newest opset, and weights are memory-mapped.

`onnx_reader` reads models. `adapters` convert operators of older opsets; `contrib` and its families convert those of
the domain com.microsoft. `foreign` operators run in ONNX's reference evaluator, if `evaluated` lists them. `schemas`
checks nodes against ONNX's operator definitions. `tensors` locates the elements of constants.
"""
