"""Which of several callables is fastest."""
