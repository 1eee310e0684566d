"""Options that belong together, each group as one value that functions take.

A group is given as a value of its class, as a dict of its fields, or, where a field has the name of the parameter, as
that field alone: ``norm="l2"`` is ``norm={"norm": "l2"}``. A field that is None leaves the choice to the function.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from typing_extensions import TypeAliasType  # which torch requires; typing has it from Python 3.12 on

from squashlens._typing import Distance, MethodName, Passes, Scale, Target
from squashlens.checks.arguments import validated
from squashlens.sequences import GrowingSequence

__all__ = [
    "Between",
    "Designs",
    "Edges",
    "Estimation",
    "MapExtras",
    "NormAndScale",
    "Pairs",
    "ProfileExtras",
    "Replacements",
    "Runs",
    "Sampling",
    "Separator",
    "Substitute",
]

Run = Literal["float32", "bfloat16", "float16", "int8"]
Precision = Literal[Run, "fp32", "bf16", "fp16"] | torch.dtype  # as a user may give it
PROBES = 64  # of a sketch: on Gemma 3 270M a tenth of the time of the exact norm


def __dir__() -> list[str]:
    return [*__all__]


@validated
@dataclass(frozen=True, kw_only=True)
class Between:
    """The layers between which influence is measured.

    Args:
        from_layer: layer ℓ whose residual stream v⁽ℓ⁾ is the start, after any hooks at that point; 0, the embeddings,
            by default.
        to_layer: layer at which it ends: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the default) for the output of the final
            norm. A list of them gives a leading dimension `to_layer`, whose labels are text: ``"3"``, ``"y"``.
    """

    from_layer: int = 0
    to_layer: Target | Sequence[Target] = "y"


@validated
@dataclass(frozen=True, kw_only=True)
class Estimation:
    """How norms of the Jacobian are computed.

    Args:
        method: ``"exact"``; ``"sketch"``, an estimate with an interval from `n_probes` products; ``"sketch_upper"``, a
            certified upper bound from `n_probes` products; ``"none"``, no norms; or ``"auto"`` (the default), the
            exact norm if it takes at most 2·10¹⁰ operations a token (2·10¹² on a GPU), and a sketch otherwise. It
            depends on the model only, and the provenance says which it was (`call`).
        n_probes: number of random directions of a sketch; 64 by default. With d or more, the exact norm is no slower.
        rtol: relative half-width of the 95 % interval at which a sketched Frobenius norm stops taking more probes (at
            most d), between 0 and 1; by default exactly `n_probes` are taken. The interval is then that of each norm
            alone.
        tightness: a certified upper bound on the spectral norm divided by that norm, above 1: the upper bound takes
            more directions until the quotient is estimated to be at most this at every position, and `n_probes` is not
            used; by default exactly `n_probes` are taken. With 3, it took 79 to 99 directions on a random model with d
            of 512, which is 0.15 to 0.19 of the cost of the exact norm.
        vjp_batch_size: number of cotangents per batch; chosen to fit in about a gigabyte by default.
        seed: random seed of the directions of a sketch; 0 by default. For certified bounds it is by default drawn from
            the system's entropy, and the provenance has it (`call`): a failure probability holds for directions that
            nobody knew when the model was made.
    """

    method: MethodName = "auto"
    n_probes: int = PROBES
    rtol: float | None = None
    tightness: float | None = None
    vjp_batch_size: int | None = None
    seed: int | None = None


@validated
@dataclass(frozen=True, kw_only=True)
class Edges:
    """How the edges of a certified path bound are computed.

    Args:
        n_composed: number of consecutive blocks whose Jacobians are multiplied before the norm is taken, counted from
            the top; 1 by default. All L blocks give the norm of the Jacobian itself.
        vjp_batch_size: number of cotangents per batch; chosen to fit into memory by default.
        seed: random seed of the probes and of Lanczos iteration. By default it is drawn from the system's entropy,
            since no model can be built to avoid such probes; the provenance has it (`call`).
    """

    n_composed: int = 1
    vjp_batch_size: int | None = None
    seed: int | None = None


@validated
@dataclass(frozen=True, kw_only=True)
class Replacements:
    """The tokens that replace a token.

    Args:
        candidates: token ids that may replace a token; by default the distinct tokens of the prompts except BOS (of
            each prompt by itself, if the prompts are of unequal lengths). ``"predicted"``: what the model itself
            expects there, drawn without replacement with the probabilities p(· | tokens before); with BOS only.
        n_replacements: number of random replacements for each token or span, 8 by default. If fewer other candidates
            exist for a token, each of them is used once. A token is never replaced by itself.
    """

    candidates: Sequence[int] | Literal["predicted"] | None = None
    n_replacements: int = 8


@validated
@dataclass(frozen=True, kw_only=True)
class NormAndScale:
    """How the distance D of two representations is measured.

    Args:
        norm: ``"linf"`` (the default), the largest coordinate, as in Theorem 4.2; ``"l1"`` or ``"l2"``.
        scale: ``"absolute"``, the model's units; ``"relative"``, divided by the root mean square of v's coordinates.
            `collapse` and `separator_ablation` use absolute distances by default, as the paper does, and all others
            relative ones.
    """

    norm: Distance = "linf"
    scale: Scale | None = None


@validated
@dataclass(frozen=True, kw_only=True)
class Pairs:
    """How the pairs of a growing sequence are run, and how often.

    Args:
        n_samples: number of unrelated sequences, with ``baselines="unrelated"``.
        noise_lengths: number of lengths, evenly spaced, at which v and v* are run again by other passes. The noise
            floor follows from the differences. Each prompt has its own pass; if that is how it was run before, two
            copies of it are run side by side.
        passes: ``"auto"`` shares passes where shared and separate passes agree. ``"separate"`` runs every prompt by
            itself, as ``"auto"`` does under hooks that edit, and where the position encoding depends on the length of
            the pass ("longrope", "dynamic"). ``"shared"`` raises an error in these cases. The provenance says which way
            was used, and why.
        tokens_per_pass: number of branch tokens in one pass; by default, as many as fit into about one gigabyte.
        seed: random seed of the unrelated sequences.
    """

    n_samples: int = 3
    noise_lengths: int = 4
    passes: Passes = "auto"
    tokens_per_pass: int | None = None
    seed: int = 0


@validated
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What is measured on sequences that are drawn.

    Args:
        n_samples: number of sequences of the same form on which accuracy is measured, for families everything, with
            content drawn uniformly from the sequence's alphabet; 16 by default.
        method: for families, way to compute the norms of the Jacobian, as in `jacobian_norms`, ``"exact"`` by default;
            ``"none"`` leaves them out.
        noise_lengths: number of lengths at which D is measured a second time, for the noise floor; 0, no noise floor,
            by default.
        seed: random seed of all that is drawn; 0 by default.
    """

    n_samples: int = 16
    method: MethodName = "exact"
    noise_lengths: int = 0
    seed: int = 0


@validated
@dataclass(frozen=True, kw_only=True)
class Designs:
    """Placements of separators that are tried.

    Args:
        separator: separators to try, one or several, as texts that are one token each or as ids; each is tried with
            each period.
        every: periods to try, one or several: numbers of content tokens between two separators.
        n_placements: number of random placements of the best separator, at least 5; 40 by default.
        n_samples: number of sequences on which accuracy is measured, as in `compare`; 16 by default.
        seed: random seed of the placements and of the sequences on which accuracy is measured; 0 by default.
    """

    separator: str | int | Iterable[str | int] = (",", ".", "?")
    every: int | Iterable[int] = (2, 3, 6)
    n_placements: int = 40
    n_samples: int = 16
    seed: int = 0


@validated
@dataclass(frozen=True, kw_only=True)
class ProfileExtras:
    """What `profile` measures beside the path bound and the Jacobian.

    Args:
        n_random_models: number of models with random weights, drawn with the seeds 0, 1, …, whose influence by distance
            is measured as well; 1 by default. They have none of the hooks of the model.
    """

    n_random_models: int = 1


@validated
@dataclass(frozen=True, kw_only=True)
class MapExtras:
    """What `squash_map` measures beside the path bound and the Jacobian.

    Args:
        n_replacements: number of random replacements of each token, as in `substitution_effect`; 0, the default,
            measures no substitution effects.
    """

    n_replacements: int = 0


@validated
@dataclass(frozen=True, kw_only=True)
class Separator:
    """A separator within a growing sequence.

    Args:
        separator: a token to insert after every `every`-th content token; none by default.
        every: number of content tokens between separators, 3 by default.
    """

    separator: str | int | None = None
    every: int = 3


@validated
@dataclass(frozen=True, kw_only=True)
class Substitute:
    """What stands in place of separators in `separator_ablation`.

    Args:
        substitute: token that replaces separators for ``"substitute"``, as text or id; by default a random token that
            is not in the sequence.
        source: growing sequences of the same form, whose residual streams at the separators' positions are used by
            ``"mean_residual"`` and ``"resample_residual"``; by default eight with random content.
        seed: random seed of the random places, the substitute, the source sequences and the choice among them; 0 by
            default.
    """

    substitute: str | int | None = None
    source: Sequence[GrowingSequence] | None = None
    seed: int = 0


@validated
@dataclass(frozen=True, kw_only=True)
class Runs:
    """Precisions in which the model itself is run.

    Args:
        runs: ``"float32"``, ``"bfloat16"``, ``"float16"`` (or ``"fp32"``, ``"bf16"``, ``"fp16"``, or their dtypes), and
            ``"int8"``, float32 with 8-bit weights, which needs ``squashlens[quant]``. By default the loaded model is
            measured.
        lengths: numbers of content tokens at which D is measured, in increasing order; all from 1 by default.
        noise_lengths: number of lengths at which each prompt is also run by itself, for the noise floor: a D below it
            may be rounding. 6 by default.
        device: device of the model, such as ``"cpu"`` or ``"cuda"``; CUDA if available by default.
    """

    runs: Precision | Collection[Precision] | None = None
    lengths: Iterable[int] | None = None
    noise_lengths: int = 6
    device: str | torch.device | None = None


# What functions take: a value of the class, a mapping of its fields, or the field with the name of the parameter.
BetweenLayers = TypeAliasType("BetweenLayers", Between | Mapping[str, Any])
Method = TypeAliasType("Method", Estimation | MethodName | Mapping[str, Any])
EdgeMethod = TypeAliasType("EdgeMethod", Edges | Mapping[str, Any])
Replaced = TypeAliasType("Replaced", Replacements | Mapping[str, Any])
DistanceNorm = TypeAliasType("DistanceNorm", NormAndScale | Distance | Mapping[str, Any])
HowPairs = TypeAliasType("HowPairs", Pairs | Mapping[str, Any])
Drawn = TypeAliasType("Drawn", Sampling | Mapping[str, Any])
Tried = TypeAliasType("Tried", Designs | Mapping[str, Any])
WithSeparator = TypeAliasType("WithSeparator", Separator | str | int | Mapping[str, Any] | None)
Substituted = TypeAliasType("Substituted", Substitute | str | int | Mapping[str, Any] | None)
InPrecisions = TypeAliasType("InPrecisions", Runs | Precision | Collection[Precision] | Mapping[str, Any] | None)
OfProfile = TypeAliasType("OfProfile", ProfileExtras | Mapping[str, Any])
OfMap = TypeAliasType("OfMap", MapExtras | Mapping[str, Any])
