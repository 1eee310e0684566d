"""What a squash map shows: influence by query, layer and position, strongest paths, and the ways of each cell."""
