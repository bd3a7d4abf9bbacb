"""Moves of elements and slices to and from places that indices give at run time."""
