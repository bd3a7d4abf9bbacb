"""Backend of `torch.compile`, under the name "cpuconv" (entry point group `torch_dynamo_backends`).

`backend` is what torch calls. `tracing` makes a graph of ATen operators of what Dynamo captured, `partitions` finds the
parts that this package computes, and `calling` runs them; `weights` notices changed parameters.
"""
