"""Patch activations from another prompt, and see which of them carry the answer.

Copy this and edit it. Two prompts differ in one digit. The residual stream of the other prompt at one position of one
block, or the outputs of one block's heads, replace those of this prompt. If the answer becomes the other's, they
carry it.

    python hooks/patch_activations.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
L = len(model.blocks)
heads = range(model.cfg.n_heads)
prompt, other = (
    f"What is the last digit in this sequence? 40715{digit} =" for digit in "83"
)
digit = sl.hooks.find_positions(model, prompt, "8")
end = sl.hooks.find_positions(model, prompt, "=")


def share(*hooks) -> str:
    """The probabilities of this prompt's answer and of the other's, with some hooks."""
    with sl.applied(model, *hooks):
        said = sl.top_tokens(model, prompt, k=20)
    found = {
        str(token): float(p)
        for token, p in zip(said["token"].values, said.values, strict=True)
    }
    return f"{found.get('8', 0):.3f} {found.get('3', 0):.3f}"


_, cache = model.run_with_cache(
    sl.prompts.tokenize(model, other)
)  # the prompt's text works too
print(f"{prompt}   p(8) p(3) = {share()}")
print(f"{'':>7}  {'digit':>11}  {'=':>11}  {'heads at =':>11}")
for b in range(L):
    row = [
        share(sl.hooks.patch_residual(digit, cache, (b,))),
        share(sl.hooks.patch_residual(end, cache, (b,))),
        share(sl.hooks.patch_heads(heads, cache, (b,), positions=end)),
    ]
    print(f"block {b}" + "".join(f"  {cell:>11}" for cell in row))

shifted = "What is the last digit in this sequence? 4407153 ="  # one more digit moves later tokens by one
later = [place + 1 for place in digit]
print(
    f"from a longer prompt: {share(sl.hooks.patch_residual(digit, shifted, (0,), from_positions=later))}"
)
