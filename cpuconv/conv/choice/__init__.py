"""Selection of the candidate that runs a problem."""
