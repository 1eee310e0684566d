"""How tiny-prose was made: a small Gemma 2 that reads any text, trained on the prose of five Debian packages.

In the order of `make train-prose`: `corpus` (with `extract`) builds the text, `tokenizer` learns the vocabulary,
`train` trains the model, and `evaluate` (with `measures`, `abilities`, and the baseline `kneser_ney`) measures it and
writes the model card.
"""
