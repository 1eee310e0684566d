"""Proofs: that a bridge computes what the plain model computes and that hooks take effect; and for which state."""
