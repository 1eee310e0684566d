"""Run a model once and keep its activations, in memory or on disk."""
