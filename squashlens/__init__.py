"""squashlens measures how decoder-only transformers lose information on the way to the last token.

It implements the theory of Barbero et al. 2024, *Transformers need glasses!*, on top of TransformerLens. Every
measurement takes a model and what to measure, mostly a prompt, and returns a labelled xarray result. The parts, in the
order to read them:

1. **Load.** `load` opens a model as a TransformerLens bridge and verifies it; `prompts.tokenize` turns text into ids.
   `capture` runs the model once and keeps its activations; measurements accept the capture instead of the prompt or
   sequence.
2. **Over-squashing**: how much each token of a prompt influences the last one. `path_bound` is the sum over
   attention paths of Theorem 5.1, `jacobian_norms` the true sensitivity, and `bound_vs_jacobian` compares the two.
   `jacobian` gives the Jacobian's blocks and their leading directions. `token_influence` measures all queries and
   layers of a prompt, and `influence_by_distance` how influence falls with distance. `substitution_effect` replaces
   tokens and `knockout_effect` takes them away, `needle_sensitivity` measures one token of many prompts, and
   `top_tokens` shows the prediction. `attention_sinks` finds tokens that get attention whatever they say, and
   `head_statistics` describes heads. `attention_paths` has functions for the attention paths that the bound sums over.
   `squash_map` shows all of this as one interactive page.
3. **Collapse**: the distance between a sequence and the same sequence with its last token repeated. `prompts` builds
   sequences that grow token by token; `collapse` measures the distance of Theorem 4.2 and `collapse_mechanism` the
   steps of its proof. `distinguishable_lengths` measures which lengths stay apart above rounding; `separator_ablation`
   shows what separators do, and `repeat_tokenization` whether repeated text is a repeated token.
4. **Answers.** `tasks` has copying and counting tasks. `evaluate_task` measures what a model answers. `probe` tests
   whether the right answer is represented, and `collapse_vs_readout` whether collapse causes wrong answers.
5. **Interventions.** `hooks` has interventions, and `applied(model, ...)` applies them for the duration of any
   measurement. `compare_interventions` compares several interventions, such as sliding windows of several sizes.
6. **Results.** `results` saves, opens, joins and tabulates results, and says how one was made. `figures` draws them,
   `report` writes a page, and `paper` the paper's figures for a LaTeX document. `Study` runs many measurements, on one
   machine or a cluster.
7. **Theory.** `theorems` evaluates the paper's statements on your own inputs, and `synthetic` measures random
   attention stacks, without a model.

`errors` defines the exceptions, whose messages name a cause and a remedy; `example_models` has the bundled models.
Names are imported at first use: importing squashlens imports neither torch nor TransformerLens, and changes no global
setting.
"""

from importlib.metadata import version
from typing import Any

import lazy_loader

_load, _names, __all__ = lazy_loader.attach_stub(
    __name__, __file__
)  # __init__.pyi lists the public names
# Names of TransformerLens and of the field, for what has another name here.
ELSEWHERE = {
    "attention_rollout": "path_bound",
    "logit_lens": "answer_by_layer",
    "run_with_cache": "capture",
    "run_with_hooks": "applied",
    "from_pretrained": "load",
    "generate": "evaluate_task",
}


def __getattr__(name: str) -> Any:
    """A public name at its first use; a name of another library raises an error that says what stands for it."""
    if name in ELSEWHERE:
        cause = f"module 'squashlens' has no attribute {name!r}"
        raise AttributeError(f"{cause}. squashlens has sl.{ELSEWHERE[name]}")
    value = version("squashlens") if name == "__version__" else _load(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_names(), "__version__"})
