"""How tiny-gemma was trained: its vocabulary, its training data, the training, and its model card."""
