"""A random attention stack: its description, its weights, and its forward pass."""
