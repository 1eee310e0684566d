"""Certified path bounds: edges that are at least the norms of a block's Jacobian at this input."""
