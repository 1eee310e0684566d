"""Figures of interventions."""
