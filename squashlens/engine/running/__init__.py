"""Forward passes of one or many prompts, and greedy or sampled continuations."""
