"""What tests share: operands and oracles, described machines, simulated time, processes, models."""
