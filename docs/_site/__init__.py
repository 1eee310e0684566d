"""Sphinx extensions and files of the documentation site."""
