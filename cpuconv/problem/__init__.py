"""Problem statements: problems, arguments, arrays, problem files and the float64 reference."""
