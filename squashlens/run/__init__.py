"""Run a verified model: passes, attention, derivatives, captures and generated text.

- *Own the model*: `run`.
- *Passes*: `forward`, `passes` (many prompts that share a trunk), `streamed` and `fused` (attention without whole
  patterns), `groupings` (the same prompt, rounded otherwise), `activations` (what is read of all these).
- *Keep activations*: `captures` (one prompt, or a growing sequence with its pairs).
- *Differentiate*: `derivatives.replay` and `spans` (vector–Jacobian products), `exact` (float64), `visibility` (which
  tokens attention can reach).
- *Generate*: `generate`. The memory of a pass is in `budget`.
"""
