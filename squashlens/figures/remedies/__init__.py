"""Figures of interventions and windows."""
