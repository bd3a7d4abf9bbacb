"""Programs as functions of sizes: kernel arguments are lowered once for a class of sizes, and evaluated for each."""
