"""Rank correlations, trends, tests of paired samples and regressions."""
