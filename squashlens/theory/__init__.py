"""The paper's mathematics on plain tensors, without models or plots."""
