"""What a network is quantised by: samples, from memory or from files."""
