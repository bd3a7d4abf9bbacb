"""Public API: calls for one convolution, for a network, and for the caches of the process."""
