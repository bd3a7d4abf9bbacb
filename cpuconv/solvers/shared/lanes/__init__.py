"""Lane tiles of depthwise and grouped convolution: which fit, what they take, and the call."""
