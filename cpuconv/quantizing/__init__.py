"""Quantisation of float32 networks to int8: calibration, scales, and QDQ model files that other engines read too."""
