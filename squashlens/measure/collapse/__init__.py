"""Representational collapse: the distance between v and v*, its causes, and what rounding leaves of it."""
