"""Copies and reorders of tensors between any layouts and axis orders."""
