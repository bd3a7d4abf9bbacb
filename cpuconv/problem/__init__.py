"""What is asked: problems, arguments, arrays, the models they come from, and the float64 reference."""
