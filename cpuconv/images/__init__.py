"""Pictures as inputs of networks: their description, resize and geometry."""
