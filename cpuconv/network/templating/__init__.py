"""Programs as functions of sizes: lower kernel arguments once for a class of sizes, evaluate them for each size."""
