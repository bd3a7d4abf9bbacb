"""Stamps that identify the sources of machine code, and the parsing of these sources."""
