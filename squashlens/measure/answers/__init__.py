"""Answers: how often a model answers tasks correctly, and whether it represents the answers that it gets wrong."""
