"""Properties of this computer: identity, cores, memory, roofs."""
