"""Planes in channel blocks, each lane by itself: depthwise convolution, pooling, resizing."""
