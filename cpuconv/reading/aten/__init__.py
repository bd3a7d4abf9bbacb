"""Reader of PyTorch's ATen graphs; the package torch is imported only when a module is read.

`exported` reads modules, exported programs and files. `regions` and `functional` free their graphs of nested graphs and
of in-place operators, `decomposing` of some that have no adapter, and `fx_reader` reads the result. `table` has the
adapters by ATen name; the families `indexing`, `layers`, `numbers`, `quantised`, `recurrent`, `reductions`, `shapes`
and `vision` use `emitter`.
"""
