"""Stamps that tell what machine code was made from: sources, parsed for what follows from them."""
