"""Representational collapse: the distance between v and v*, its causes, and its limits in low precision."""
