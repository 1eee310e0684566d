"""The squash map: one interactive page about a prompt, for notebooks, files and the report."""
