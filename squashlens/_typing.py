"""Types, choices and the vocabulary of axes; jaxtyping annotations use these axis names and no others.

    prompt    several prompts of equal length            position  token positions of one sequence
    query     positions that attend                      key       positions attended to
    head      query heads                                d         the residual stream's coordinates
    out, in   rows and columns of one Jacobian block     cotangent vector–Jacobian products of one batch
    branch    prompts that share a trunk                 part      vectors that add up to one
    path      single walks over positions                hop       how often a path goes through attention
    operator  matrices that are known by their products only
    outcome   outcomes of a distribution                value     coordinates of one head's values
    group     key/value heads                            many      any leading axes
    stack     coordinates of all heads' values in a row  seen      keys that one query sees
    token     positions where queries are keys too        variant   a prompt with one token replaced
    each      query heads of one key/value group    dot       coordinates of one query or key
    row       vectors that are pushed through a pattern together
    place     some positions that were chosen            block     blocks of a model
    seed      independent random draws                   length    lengths of a growing sequence
    layer     layers of a synthetic stack                bucket    ranges of distance that share a bias
    content   tokens before any is repeated   hidden    units inside an MLP
    symbol    kinds of token                              and_one   the positions of a row, and one more
    fold      parts of a sketch that are left out in turn several   numbers computed from one block
    distance  positions between a query and a token      series    quantities that fall with distance
    exponent  exponents that are tried                  span      tokens that are measured together

A single axis has a leading space, `Float[Tensor, " position"]`, because the linter needs it.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypeVar, get_args

# Which torch requires; typing has it from Python 3.12 on.
from typing_extensions import TypeAliasType

from squashlens.errors import InputError

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge as Bridge
else:  # the same name for `help`; importing the class itself takes seconds
    Bridge = NewType("TransformerBridge", object)
    Bridge.__module__ = "transformer_lens.model_bridge"

S = TypeVar("S", bound=Sequence[Hashable])
N = TypeVar("N", int, float)

Freezable = Literal["attention", "norms", "gates"]
Norm = Literal["spectral", "frobenius"]
Method = TypeAliasType(
    "Method", Literal["auto", "exact", "sketch", "sketch_upper", "none"]
)
Knockout = Literal["attention", "embedding"]
AttentionKind = Literal["model", "uniform", "topological"]
ATTENTION = {
    "model": "",
    "uniform": "uniform attention",
    "topological": "all attention weights 1",
}  # in words
Target = int | Literal["y"]
Targets = TypeAliasType("Targets", Target | Sequence[int])
Candidates = TypeAliasType(
    "Candidates", Sequence[int] | Literal["predicted"] | None
)  # token ids that replace a token
ChoicesOfPrompts = TypeAliasType(
    "ChoicesOfPrompts", Sequence[str] | Sequence[Sequence[str]] | None
)
# Texts of prompts, dictionaries of a prompt with its answer, or a JSONL file of these.
PromptsOrItems = TypeAliasType(
    "PromptsOrItems", Sequence[str] | Sequence[Mapping[str, Any]] | str | Path
)
# Texts, or pairs of a text and its counterpart.
TextsOrPairs = TypeAliasType("TextsOrPairs", Sequence[str] | Sequence[tuple[str, str]])
Clusters = TypeAliasType(
    "Clusters", Sequence[str] | Sequence[int] | None
)  # one label for each prompt
Missing = Literal["zero", "mean"]  # what stands in place of an output
Parts = Literal["sublayers", "heads"]
Bos = Literal["family", "none"]
Distance = Literal["linf", "l1", "l2"]
Heads = Literal["value", "slice"]
Scale = Literal["absolute", "relative"]
Baseline = Literal["contrast", "unrelated"]
Baselines = TypeAliasType("Baselines", Baseline | Collection[Baseline])
Over = Literal["prompts", "positions"]
Template = Literal["none", "chat"]
Tensors = Literal["residuals", "patterns"]  # of a capture
Passes = Literal["auto", "shared", "separate"]
Edit = Literal[
    "delete", "delete_keep_positions", "substitute", "extra_digits", "random_places"
]
Ablation = Literal[
    "mask",
    "zero_attention",
    "zero_values",
    "zero_residual",
    "mean_residual",
    "resample_residual",
]
Kind = Literal[Edit, Ablation]
Kinds = TypeAliasType("Kinds", Collection[Kind])
Pieces = Literal["words", "sentences", "lines"]
SpansOfTokens = TypeAliasType(
    "SpansOfTokens", Pieces | Mapping[str, Sequence[int]] | None
)
FrozenParts = TypeAliasType("FrozenParts", Freezable | Collection[Freezable])
Mode = Literal["answer_only", "cot", "cot_few_shot"]
Modes = TypeAliasType("Modes", Mode | Sequence[Mode])
Encoding = Literal[
    "none", "sinusoidal", "sinusoidal_qk", "rope", "alibi", "t5", "learned"
]
StackNorm = Literal["none", "rms", "layer"]
Projections = Literal["random", "direct"]
DtypeName = Literal[
    "float64", "float32", "float16", "bfloat16", "fp64", "fp32", "fp16", "bf16"
]

SHORT = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def full_name(dtype: Any) -> Any:
    """The full name of a dtype for a short name such as ``"bf16"``; other values are returned unchanged."""
    return SHORT.get(dtype, dtype) if isinstance(dtype, str) else dtype


def dtype_name(dtype: object) -> str:
    """The name of a dtype, such as "bfloat16"; PyTorch prints "torch." before it."""
    return str(dtype).removeprefix("torch.")


def choices_of(choices: object) -> tuple[Any, ...]:
    """The values that a `Literal` allows."""
    return get_args(choices)


def one_of(value: object, choices: object, argument: str) -> None:
    """Raise an error, with the allowed values, for a value outside a `Literal`."""
    allowed = choices_of(choices)
    if not isinstance(value, Hashable) or value not in allowed:
        cause = f"{argument}={short_repr(value)} is not a choice."
        raise InputError(cause, f"Use one of: {', '.join(map(repr, allowed))}.")


def by_device(numbers: Mapping[str, N], device: Any) -> N:
    """The number for a device of PyTorch: that for the CPU, or that for CUDA, which stands for all others."""
    if device.type == "cpu":
        return numbers["cpu"]
    return numbers["cuda"]


def several(given: Any) -> list[Any]:
    """The values of an argument that takes one or several, as a list; a text is one value."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of any type, such as NumPy's; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole(value: Any) -> Any:
    """A whole number of any type as an int; other values are returned unchanged."""
    return int(value) if is_whole(value) else value


# A real number that may be infinite or NaN, for statements whose premises test it.
Extended = Annotated[float, "also infinite or NaN"]
MOST = 1_000_000  # limit for every count: above any model's context, and below a typing error of some zeros


def positive(
    value: object, argument: str, what: str, *, or_zero: bool = False, most: int = MOST
) -> None:
    """Raise an error unless `value` is a whole number from 1 (or 0) to `most`; `what` describes the number."""
    number = whole(value)
    least = 0 if or_zero else 1
    given = f"{argument}={short_repr(value)}"
    if not is_whole(number) or number < least:
        cause = f"{given} is not {what}."
        raise InputError(cause, f"Give a whole number of at least {least}.")
    if number > most:
        raise InputError(f"{given} is too large.", f"Give at most {most}.")


def distinct(values: S, argument: str, given: object = None) -> S:
    """The values; raises an error, with what was `given`, unless there is at least one, and each of them once."""
    if not values or len(set(values)) < len(values):
        cause = f"{argument}={short_repr(given or values)} has no value or one twice."
        raise InputError(cause, "Give at least one, each once.")
    return values


def listed(names: Sequence[str]) -> str:
    """The first few names, and the number of the others."""
    first = ", ".join(names[:4])
    n_others = len(names) - 4
    return f"{first} and {n_others} more" if n_others > 0 else first


def short_repr(value: object) -> str:
    """The repr of a value for a message: one line, shortened, also for values whose repr fails.

    Of a Dataset, only the names of its variables: xarray's repr is a page, and slow.

    >>> short_repr([1, 2]), len(short_repr("1" * 5000)) < 100
    ('[1, 2]', True)
    """
    try:
        text = _repr_in_one_line(value)
    except Exception:  # any error of its __repr__, or an integer too long for text
        text = object.__repr__(value)
    return text if len(text) <= 80 else f"{text[:50]} … {text[-20:]}"


def _repr_in_one_line(value: object) -> str:
    variables = getattr(value, "data_vars", None)
    if variables is not None:
        return f"<Dataset {', '.join(map(str, variables))}>"
    return " ".join(repr(value).split())
