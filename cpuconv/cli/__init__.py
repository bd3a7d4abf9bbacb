"""The command line for networks: run, profile, explain."""
