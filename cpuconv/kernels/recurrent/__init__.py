"""Recurrent layers (LSTM and similar cells)."""
