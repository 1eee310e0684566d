"""Remedies: the same sequence under hooks, windows and separators, compared by collapse, path bound and accuracy."""
