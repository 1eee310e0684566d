"""Collapse in low precision: rounded representations, one block with rounded inputs, and runs in other dtypes."""
