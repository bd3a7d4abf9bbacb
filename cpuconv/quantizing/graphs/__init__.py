"""What happens to a graph: made ready, planned, its channels equalised, quantised, written to a file."""
