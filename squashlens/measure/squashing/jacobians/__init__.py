"""True sensitivities: exact norms of Jacobian blocks, sketches of them, and certified upper bounds."""
