"""The paper's mathematics on plain tensors: no model, no plotting."""
