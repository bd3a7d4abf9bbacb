"""Matrix multiplication in register tiles: GEMM, batched MatMul, and vector times matrix."""
