"""Check arguments before any work: the kinds that a function accepts, and the result that a figure needs."""
