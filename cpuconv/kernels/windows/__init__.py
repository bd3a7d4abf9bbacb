"""Lane-wise kernels on channel blocks: depthwise convolution, pooling, resizing."""
