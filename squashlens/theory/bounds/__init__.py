"""The path sum of Theorem 5.1, and upper bounds on the influence through one block that it is made of."""
