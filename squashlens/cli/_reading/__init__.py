"""What a user types: options and their help, spelling, and what is refused before a model is loaded."""
