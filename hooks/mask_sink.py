"""Hide the first token in one block or in all, or leave it out of the prompt, and see whether the model depends on it.

Copy this and edit it. With rotary positions only differences of positions count. For all other tokens, masking the
first token in every block is then the same as leaving it out (`bos="none"`). The prompt is one where the model
is uncertain.

    python hooks/mask_sink.py
"""

import numpy as np
import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
digits = "11001101111111111110001011111011001111110111"  # 44, of which 33 are ones
# It ends with the answer's first digit; the second one is 3, too.
prompt = f"How many ones are in the following sequence? {digits} = 3"
ids = sl.prompts.tokenize(model, prompt)
shorter = sl.prompts.tokenize(model, prompt, bos="none")
right = "3"
L = len(model.blocks)
n = len(ids[0])


def chance(*hooks: sl.hooks.Hook, given=ids) -> float:
    """The probability of the answer's second digit, with some hooks."""
    with sl.applied(model, *hooks):
        said = sl.top_tokens(model, given, k=model.cfg.d_vocab)
    return said.where(said["token"] == right).sum().item()


run = sl.capture(model, prompt)
uniform = (1 / np.arange(2, n + 1)).mean()
table = {"if uniform": {"all heads": uniform, "last token": 1 / n}}
for b in range(L):
    sink = run.patterns[b][0, :, 1:, 0]  # (head, later query)
    most, head = sink.mean(-1).max(0)
    table[f"block {b}"] = {
        "all heads": sink.mean().item(),
        "most": most.item(),
        "in head": head.item(),
        "last token": sink[:, -1].mean().item(),
        "p(3) if masked": chance(sl.hooks.mask_tokens([0], blocks=(b,))),
    }
print("attention of later tokens to the first one; p(3) with it masked in this block")
print(pd.DataFrame(table).T.to_string(float_format="{:.3g}".format, na_rep=""))

first = sl.hooks.mask_tokens([0])
print(f"p(3): unchanged {chance():.4f}, first token masked in all {chance(first):.4f},")
print(f"  left out {chance(given=shorter):.4f},", end=" ")
print(f"second token masked in all {chance(sl.hooks.mask_tokens([1])):.4f}")

with sl.applied(model, first):
    masked = sl.capture(model, prompt).residuals[L][:, 1:]
without = sl.capture(model, shorter).residuals[L]
plain = run.residuals[L][:, 1:]
print("last layer's streams, all tokens but the first, against those with it left out:")
print(f"  masked in all differ by at most {(masked - without).abs().max():.1g},")
print(f"  unchanged by {(plain - without).abs().max():.2g} of {plain.abs().max():.0f}")
