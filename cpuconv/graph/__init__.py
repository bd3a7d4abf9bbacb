"""Whole networks: read, rewritten, laid out, placed in memory, recorded and run.

A network goes through these files in turn:

- `ir` is what it is at every stage. `onnx_reader` reads it, with `adapters` for older opsets, `contrib` for operators
  of com.microsoft, `foreign` for operators that the table (`ops`) does not know, `schemas` for what ONNX says of a
  node; `elements` holds weights where they lie in the file, `limits` bounds what a model may ask for.
- `prepared` makes it ready for certain sizes: `steering` finds the inputs whose elements decide sizes, `specialise`
  computes shapes and folds constants, `tail` cuts off what has sizes that are found when it runs, `passes` rewrite.
- `layout` gives every node an offer (`lowering`) and says where copies are needed, by a selection of `planning`;
  `raced` knows selections that were fastest, `chosen` is a selection as it is kept.
- `memory` gives every tensor a place (`place`) in the arena. `executable` puts nodes into kernel calls (`kernels`)
  and constants where these read them (`constants`, `packed`); `program` records the calls, and a `caller` runs them.
- `programs` remembers what was made for which sizes and finds how many threads are fastest (`counts`); each is made
  from the `origin`, or read from a file (`saved`), and has what was cut off `behind` it. `model` is what callers see;
  `handed` checks their arrays.

Beside these, `interpret` computes any graph by the operators' references and is what results are compared with;
`explain`, `profile` and `timing` tell what became of a network and where its time goes; `asked` lists what there is
to tune.
"""
