"""Figures of measurements of representational collapse."""
