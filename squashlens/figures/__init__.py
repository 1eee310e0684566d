"""Figures: they draw the results they are given, in one theme, and compute nothing."""

from squashlens.figures.attribution import attribution
from squashlens.figures.composition import composition

__all__ = ["attribution", "composition"]
