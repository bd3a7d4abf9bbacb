"""Search: the first elements of lines by value, extremes, non-maximum suppression, and cumulative sums."""
