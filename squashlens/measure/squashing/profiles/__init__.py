"""All queries and all layers of a prompt in one result."""
