"""Remedies: the same sequence under hooks and separators, compared by collapse, path bound and accuracy."""
