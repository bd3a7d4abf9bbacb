"""Building blocks of the emitters of several packages."""
