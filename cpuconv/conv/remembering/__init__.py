"""What calls leave for later calls, within a bound on bytes."""
