"""Executed instructions of convolutions under emulation of an Arm core, for this project and other engines."""
