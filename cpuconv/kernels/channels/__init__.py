"""What crosses the lanes of channel blocks, or needs the statistics of planes."""
