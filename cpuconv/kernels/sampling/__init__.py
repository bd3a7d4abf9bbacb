"""Sampling of images at computed coordinates."""
