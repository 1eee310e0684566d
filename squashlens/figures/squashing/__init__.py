"""Figures of measurements of over-squashing."""
