"""Figures of a model's answers."""
