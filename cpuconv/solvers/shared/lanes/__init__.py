"""Lane tiles of depthwise and grouped convolution: candidates, cost, and the driver call."""
