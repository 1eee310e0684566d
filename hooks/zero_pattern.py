"""Take attention to some tokens away, with and without giving it to others: `mask_tokens` beside `zero_pattern`.

Copy this and edit it. A mask works before the softmax, so the weights that are left grow until rows sum to 1 again;
zeroed weights are gone, so rows sum to less and nothing else is read more. A token's own weight stays either way.

    python hooks/zero_pattern.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
prompt = "How many ones are in the following sequence? 110,111,011,101 ="
L = len(model.blocks)


def under(*hooks: sl.Hook) -> tuple[str, sl.Capture]:
    """The likeliest next token with its probability, and the attention patterns, under some hooks."""
    with sl.applied(model, *hooks):
        best = sl.next_token(model, prompt, top=1)
        return f"{best['token'].item()} {best.item():.3f}", sl.capture(model, prompt, residuals=False)


print(f"{prompt}   {under()[0]}")
for name, positions in {
    "commas": sl.places(model, prompt, ","),
    "digits": sl.places(model, prompt, str.isdigit),
}.items():
    later = positions[0] + 1  # the first token from which something is taken
    print(f"\n{name}: what later tokens' rows sum to, mean over them and heads; answer")
    print(f"{'block':>5}  {'masked':>6}  {'zeroed':>6}  {'masked':>8}  {'zeroed':>8}")
    for b in range(L):
        answers, sums = [], []
        for hook in (sl.mask_tokens(positions, blocks=(b,)), sl.zero_pattern(positions, blocks=(b,))):
            answer, run = under(hook)
            answers.append(f"{answer:>8}")
            sums.append(f"{run.patterns[b][0, :, later:].sum(-1).mean():6.3f}")
        print(f"{b:>5}  " + "  ".join(sums + answers))
