"""The public calls: of one convolution, of a network, and about what the process remembers."""

from cpuconv.api.convolution import conv2d, explain, plan
from cpuconv.api.network import compile, load
from cpuconv.api.remembering import clear_cache, set_cache_limit, tune_in_background

__all__ = ["clear_cache", "compile", "conv2d", "explain", "load", "plan", "set_cache_limit", "tune_in_background"]
