"""The measurements: each takes a model and a prompt or growing sequence, and returns a labelled xarray result.

There is one module for each measurement, and one folder for each question: `squashing` (how much each token influences
the last one), `collapse` (how far apart the representations of a sequence and its pair are, and why), `answers` (what
the model answers, and whether its representations contain the right answer) and `remedies`. `registration`
has their decorator, which opens the model, and measures prompts of unequal lengths.
"""
