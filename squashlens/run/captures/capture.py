"""Run a model once and keep its activations, for one prompt or for a growing sequence with all its pairs.

Residual streams and attention patterns go to CPU memory during the pass, block by block. Their size is estimated first,
and an error is raised if they do not fit.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import Baselines, Bridge, Passes, Target, Tensors, several
from squashlens.bars import write
from squashlens.errors import InputError
from squashlens.model.anatomy import check_layer, pattern_site
from squashlens.model.memory import human, require_room
from squashlens.model.proof import public
from squashlens.model.text.tokens import Prompts, each_of, tokenize
from squashlens.run.captured import Capture, model_state
from squashlens.run.captures.pairs import PairCapture, Pairs, capture_pairs
from squashlens.run.forward import forward
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence

Kept = TypeAliasType("Kept", Tensors | Collection[Tensors])
REPORT_ABOVE = 256e6  # bytes: the size of a larger capture is printed before it starts


@overload
def capture(
    model: Bridge,
    prompt: GrowingSequence,
    *,
    keep: Kept = ...,
    lengths: Iterable[int] | None = ...,
    baselines: Baselines = ...,
    n_samples: int = ...,
    noise_lengths: int = ...,
    passes: Passes = ...,
    seed: int = ...,
) -> PairCapture: ...
@overload
def capture(
    model: Bridge,
    prompt: Prompts,
    *,
    keep: Kept = ...,
    layers: Iterable[int] | None = ...,
) -> Capture: ...
@public
def capture(
    model: Bridge,
    prompt: Prompts | GrowingSequence,
    *,
    keep: Kept = ("residuals", "patterns"),
    layers: Iterable[int] | None = None,
    lengths: Iterable[int] | None = None,
    baselines: Baselines = (),
    n_samples: int = 3,
    noise_lengths: int = 4,
    passes: Passes = "auto",
    seed: int = 0,
) -> Capture | PairCapture:
    """Run the model once and keep activations, so that later measurements need no forward pass.

    For a **prompt** it keeps residual streams v⁽ℓ⁾, y and attention patterns at every position. For a growing
    **sequence** from `squashlens.prompts` it keeps the residual streams of v and v* at their last token, at every
    length, with as few passes as possible.

    Measurements accept a capture in place of the prompt or sequence: ``sl.path_bound(model, capture)``,
    ``sl.collapse(model, capture, norm="l2")``. They raise an error if the capture was edited, or if the model or its
    hooks have changed. Measurements that must run the sequence again, such as `compare_interventions`, use only its
    sequence and its lengths. ``capture["blocks.0.hook_resid_pre"]`` is an activation that it keeps, as in an
    `ActivationCache`.

    Norms of the Jacobian are kept with the capture: a `bound_vs_jacobian` after a `squash_map` with as many probes
    takes half of its products.

    Args:
        prompt: a prompt, several prompts of equal length, or a growing sequence.
        keep: what is kept, both by default: ``"residuals"``, the residual streams and y, and ``"patterns"``, for a
            prompt the attention patterns of each block. For a sequence, these are the last token's row of each pattern,
            the output of each head, and what attention and MLP add to the residual stream; `collapse_mechanism` and
            ``collapse(by_head="value")`` need them. Residual streams of a sequence are always kept.
        layers: layers to keep, from 0 to L; all by default. Layer ℓ is v⁽ℓ⁾ and, for ℓ < L, the pattern of block ℓ.
            Prompts only.
        lengths: numbers of content tokens; all by default. Sequences only, like all options that follow.
        baselines: also run the pairs that D is compared with: ``"contrast"`` has another last token; ``"unrelated"``
            has sequences with other content.
        n_samples: number of unrelated sequences, with ``baselines="unrelated"``; 3 by default.
        noise_lengths: number of lengths, evenly spaced, at which v and v* are run again by other passes; 4 by default.
            The noise floor follows from the differences. Each prompt has its own pass; if that is how it was run
            before, two copies of it are run side by side.
        passes: ``"auto"`` (the default) shares passes where shared and separate passes agree. ``"separate"`` runs every
            prompt by itself, as ``"auto"`` does under hooks that edit, and where the position encoding depends on the
            length of the pass ("longrope", "dynamic"). ``"shared"`` raises an error in these cases. The provenance says
            which way was used, and why.
        seed: random seed of the unrelated sequences; 0 by default.

    Returns:
        A `Capture` for a prompt, a `PairCapture` for a sequence.

    Raises:
        InputError: an unknown layer or length, or an option for the other kind of capture.
        CapacityError: the activations do not fit; the message has their size.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> run = sl.capture(model, "How many ones are in the following sequence? 110 =", layers=[0, 6])
    >>> run.residuals[6].shape, sorted(run.patterns)
    (torch.Size([1, 14, 128]), [0])
    >>> pairs = sl.capture(model, sl.prompts.repeated(model, "1", 12), lengths=[4, 12])
    >>> pairs.v.values.shape   # layers 0 to 6 and y, lengths, coordinates
    torch.Size([8, 2, 128])
    >>> sl.collapse(model, pairs)["distance"].dims
    ('layer', 'length')
    """
    pairs = Pairs(
        lengths=lengths,
        baselines=baselines,
        n_samples=n_samples,
        noise_lengths=noise_lengths,
        passes=passes,
        seed=seed,
    )
    kinds: set[Tensors] = set(several(keep))
    if isinstance(prompt, GrowingSequence):
        _require_options_of({"layers": layers}, "a prompt", "a sequence")
        if "residuals" not in kinds:
            raise InputError(
                f"keep={keep!r} leaves out the residual streams, which every capture of a sequence keeps.",
                "Add 'residuals'.",
            )
        return capture_pairs(
            Run.open(model, "capture"), prompt, pairs, patterns="patterns" in kinds
        )
    _require_options_of(vars(pairs), "a sequence", "a prompt")
    if not kinds:
        raise InputError("keep= is empty.", "Name 'residuals', 'patterns' or both.")
    layers = None if layers is None else list(layers)
    if layers == []:
        raise InputError(
            "layers= is empty.", "Give at least one layer, or leave it out for all."
        )
    return _of_prompt(Run.open(model, "capture"), prompt, kinds, layers)


def _require_options_of(options: Mapping[str, Any], belongs: str, given: str) -> None:
    """Raise an error for an option that applies only to the capture of what `belongs` names ("a prompt").

    `given` names what the caller gave; options at their default are not counted.
    """
    parameters = inspect.signature(capture).parameters
    for name, value in options.items():
        usual = parameters[name].default
        if value is not usual and value != usual:
            raise InputError(
                f"{name}= applies only to the capture of {belongs}, and {given} was given.",
                "Leave it out.",
            )


def _of_prompt(
    run: Run,
    prompts: Prompts,
    kinds: Collection[Tensors],
    layers: Iterable[int] | None,
) -> Capture:
    """Capture residual streams, patterns or both (`kinds`) of prompts at some layers, or at all of them."""
    ids = tokenize(run.model, prompts)
    top = run.n_blocks
    chosen = list(range(top + 1))
    if layers is not None:
        chosen = [check_layer(layer, run.model, "layers") for layer in layers]
    residuals: dict[Any, Tensor] = {}
    patterns: dict[int, Tensor] = {}

    def keep(into: dict[Any, Tensor], number: Target, tensor: Tensor) -> None:
        """Keep an activation under the number of its layer or block, or under "y"."""
        into[number] = tensor.detach().cpu()

    watch: list[tuple[str, Callable[[Tensor], None]]] = []
    if "residuals" in kinds:
        for layer in chosen:
            watch.append((run.site(layer), partial(keep, residuals, layer)))
        watch.append((run.site("y"), partial(keep, residuals, "y")))
    n_streams = len(watch)
    if "patterns" in kinds:
        for block in chosen:
            if block < top:  # v⁽ᴸ⁾ enters no block
                watch.append((pattern_site(block), partial(keep, patterns, block)))
    n_patterns = len(watch) - n_streams
    size = estimate(run, ids.shape, n_streams=n_streams, n_patterns=n_patterns)
    remedy = "Use fewer layers=, or keep='residuals'."
    require_room(size, torch.device("cpu"), "This capture", remedy)
    if size > REPORT_ABOVE:
        write(f"capture: storing {human(size)} in CPU memory")
    forward(run, ids, watch)
    y = residuals.pop("y", None)
    return Capture(
        ids=ids.cpu(),
        labels=run.tokens_of(ids),
        residuals=residuals,
        patterns=patterns,
        y=y,
        prompts=each_of(prompts),
        **model_state(run.model),
    )


def estimate(
    run: Run, shape: tuple[int, ...], *, n_streams: int, n_patterns: int
) -> int:
    """The size in bytes of a capture of this shape."""
    prompts, positions = shape
    numbers = n_streams * positions * run.width
    numbers += n_patterns * int(run.model.cfg.n_heads) * positions**2
    return prompts * numbers * run.dtype.itemsize
