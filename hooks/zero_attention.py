"""Remove attention to some tokens, before the softmax (`mask_tokens`) and after it (`zero_attention`), and compare.

Copy this and edit it. After a mask, the other weights of a row grow until they sum to 1 again. Zeroed weights are
missing from the sum, and no other weight grows. In both cases a token keeps its weight on itself.

    python hooks/zero_attention.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
prompt = "How many ones are in the following sequence? 110,111,011,101 ="
L = len(model.blocks)


def under(*hooks: sl.hooks.Hook) -> tuple[str, sl.Capture]:
    """The most likely next token with its probability, and the attention patterns, with some hooks."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
        return f"{best['token'].item()} {best.item():.3f}", sl.capture(
            model, prompt, keep="patterns"
        )


print(f"{prompt}   {under()[0]}")
for name, positions in {
    "commas": sl.hooks.find_positions(model, prompt, ","),
    "digits": sl.hooks.find_positions(model, prompt, str.isdigit),
}.items():
    later = positions[0] + 1  # the first token whose attention changes
    print(f"\n{name}: what later tokens' rows sum to, mean over them and heads; answer")
    print(f"{'block':>5}  {'masked':>6}  {'zeroed':>6}  {'masked':>8}  {'zeroed':>8}")
    for b in range(L):
        answers = []
        sums = []
        for hook in (
            sl.hooks.mask_tokens(positions, blocks=(b,)),
            sl.hooks.zero_attention(positions, blocks=(b,)),
        ):
            answer, run = under(hook)
            answers.append(f"{answer:>8}")
            sums.append(f"{run.patterns[b][0, :, later:].sum(-1).mean():6.3f}")
        print(f"{b:>5}  " + "  ".join(sums + answers))
