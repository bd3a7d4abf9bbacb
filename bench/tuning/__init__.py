"""Parts of `bench.tuner`: quality and cost of the tuner's selections, and robustness of its files."""
