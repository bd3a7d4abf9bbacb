"""Command line for networks: run, profile, compile, quantize, explain."""
