"""Figures of random attention stacks and of the paper's statements."""
