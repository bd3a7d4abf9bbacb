"""Control flow: semantics of If, Loop and Scan, and repeated runs of their bodies."""
