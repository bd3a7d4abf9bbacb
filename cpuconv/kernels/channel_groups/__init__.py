"""Reorders of channel groups of 1 to 8 bytes; a group is the channels that are adjacent in both layouts."""
