"""Attention: softmax(q k · scale + mask) v in one kernel call, whose scores never leave the cache."""
