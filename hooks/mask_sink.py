"""Hide the first token in one block or in all, or leave it out of the prompt, and see whether the model depends on it.

Copy this and edit it. With rotary positions only differences of positions count. For all other tokens, masking the
first token in every block is then the same as leaving it out (`bos="none"`). The prompt is one where the model
is uncertain.

    python hooks/mask_sink.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
digits = "11001101111111111110001011111011001111110111"  # 44, of which 33 are ones
prompt = f"How many ones are in the following sequence? {digits} = 3"  # ends with the answer's first digit
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
print(
    "attention on the first token, mean over later ones; and p(3) with it masked in that block"
)
print(
    f"{'block':>13}  {'all heads':>9}  {'most, in head':>13}  {'by the last token':>17}  {'p(3)':>6}"
)
for b in range(L):
    sink = run.patterns[b][0, :, 1:, 0]  # head, query
    most = sink.mean(-1).max(0)
    cells = f"{sink.mean():9.3f}  {most.values:10.3f}, {most.indices}  {sink[:, -1].mean():17.3f}"
    print(f"{b:>13}  {cells}  {chance(sl.hooks.mask_tokens([0], blocks=(b,))):6.4f}")
print(
    f"{'if uniform':>13}  {sum(1 / seen for seen in range(2, n + 1)) / (n - 1):9.3f}  {'':13}  {1 / n:17.3f}"
)
print(f"{'unchanged':>13}  {chance():51.4f}")
print(f"{'masked in all':>13}  {chance(sl.hooks.mask_tokens([0])):51.4f}")
print(f"{'left out':>13}  {chance(given=shorter):51.4f}")
print(
    f"{'second masked':>13}  {chance(sl.hooks.mask_tokens([1])):51.4f}   the second token in all blocks, for comparison"
)

with sl.applied(model, sl.hooks.mask_tokens([0])):
    masked = sl.capture(model, prompt).residuals[L][:, 1:]
without = sl.capture(model, shorter).residuals[L]
plain = run.residuals[L][:, 1:]
print(
    f"\nlast layer's streams, all tokens but the first: largest coordinate {plain.abs().max():.0f}"
)
print(
    f"  masked in all against left out: they differ by at most {(masked - without).abs().max():.1g}"
)
print(
    f"  unchanged     against left out: they differ by at most {(plain - without).abs().max():.2g}"
)
