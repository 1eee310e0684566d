"""Hooks: define them, add them to a model within a context, and find those that a model already has."""
