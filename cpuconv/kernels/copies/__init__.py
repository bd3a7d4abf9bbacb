"""Elements written elsewhere as they are: rows of pixels, reorders, copies of any axes."""
