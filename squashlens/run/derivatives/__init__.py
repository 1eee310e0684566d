"""Derivatives of a model: vector–Jacobian products through blocks, and through one attention layer at a time."""
