"""The parts of `bench.tuner`: how good the tuner's choices are, what they cost, and what its files survive."""
