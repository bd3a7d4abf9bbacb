"""What reads memory from one end to the other: fingerprints, and probes of the machine's limits."""
