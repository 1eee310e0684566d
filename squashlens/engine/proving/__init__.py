"""Prove that a bridge computes what the plain model does and that hooks take effect, for one state of the model."""
