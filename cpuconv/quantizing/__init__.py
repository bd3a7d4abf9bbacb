"""Networks of float32 made networks of bytes: what tensors span, scales, and a QDQ file that other engines read too."""
