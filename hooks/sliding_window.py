"""Impose a sliding window, with and without the first token, and see what it does to the answer and to the path bound.

Copy this and edit it. The query counts as part of its window, as in Hugging Face's models. With a window of w and L
blocks, nothing reaches further than L (w − 1) tokens. `sink=1` keeps the first token visible, which many models need.

    python hooks/sliding_window.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
tokens = sl.prompts.tokenize(
    model, "How many ones are in the following sequence? 110111011101 ="
)
first = 10  # the sequence's first digit

print(
    f"{'window':>6}  {'sink':>4}  {'answer':>6}  {'p':>5}  {'bound at the first digit, of its sum':>36}"
)
for window in (len(tokens[0]), 16, 8, 4):
    for sink in (0, 1):
        with sl.applied(model, sl.hooks.sliding_window(window, sink=sink)):
            answer = sl.top_tokens(model, tokens, k=1)
            bound = sl.path_bound(model, tokens)
        share = float(bound[first] / bound.sum())
        print(
            f"{window:>6}  {sink:>4}  {answer['token'].item():>6}  {answer.item():5.2f}  {share:36.4f}"
        )
