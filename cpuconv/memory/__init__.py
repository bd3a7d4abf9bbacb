"""What is kept between calls, within a bound on bytes."""
