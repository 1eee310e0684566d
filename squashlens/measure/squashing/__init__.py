"""Over-squashing: bounds on how much each token influences the last one, the true sensitivity, and replacements."""
