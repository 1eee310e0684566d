"""Everything that runs a model; the libraries that run models are used only here.

There are four tasks:

- *Load and verify*: `loading.load` opens a model; `verify.require_sound` checks that a bridge reproduces the plain
  model, `applied` that hooks take effect, and `state` remembers the state of the model for which this was checked,
  which `reader` reads.
- *Run and keep activations*: `capturing` (one prompt, or a growing sequence with its pairs), on `running.forward`,
  `running.passes` (many prompts that share a trunk) and `running.last_tokens` (last tokens of many prompts).
- *Differentiate*: `differentiating.replay` and `spans` (vector–Jacobian products), `exact` (float64), `visibility`
  (which tokens attention can reach).
- *Generate*: `running.generate`.

`hooking` adds hooks within a context, and `text` turns text into token ids. The modules at the top level describe a
model: its parts (`anatomy`), the memory of a pass (`budget`), the tolerance of comparisons (`agreement`).
"""
