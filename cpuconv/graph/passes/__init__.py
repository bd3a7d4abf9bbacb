"""Rewrites of a graph, one a file, each ``run(graph) -> graph``."""
