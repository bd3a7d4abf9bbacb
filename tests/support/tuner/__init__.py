"""The tuner in tests: a simulated clock, stored rows, and stand-ins for workloads and engines."""
