"""Matrices of pieces moved between layouts: a piece is the channels that both layouts keep together."""
