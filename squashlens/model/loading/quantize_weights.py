"""A model whose weights are rounded to a format of GGUF files and back, beside the model that they come from."""

from collections.abc import Iterator
from typing import Any, Literal

from torch import Tensor, nn

from squashlens._typing import Bridge, distinct
from squashlens.errors import InputError
from squashlens.model.anatomy import is_native
from squashlens.model.gguf_formats import GgufFormat, there_and_back
from squashlens.model.live import bridge_around
from squashlens.model.loading.gguf import ORIGIN
from squashlens.model.memory import require_room
from squashlens.model.proof import public
from squashlens.model.verify import rebuild_plain, require_sound

RoundedPart = Literal["attention", "mlp"]
# What a bridge calls the parts of a block.
MODULES = {"attention": "attn", "mlp": "mlp"}


@public
def quantize_weights(
    model: Bridge,
    to: GgufFormat,
    *,
    blocks: tuple[int, ...] | None = None,
    parts: tuple[RoundedPart, ...] = ("attention", "mlp"),
) -> Bridge:
    """A model whose weight matrices were rounded to a format of GGUF files, and back to the model's dtype.

    Each row of a matrix, in the order of its inputs, is cut into blocks of 32 weights. In Q8_0 a block has one scale
    and 32 whole numbers of 8 bits; in Q5_0 and Q4_0 of 5 and 4 bits; Q5_1 and Q4_1 have an offset too. The package gguf
    rounds, which converts models for llama.cpp. A file of llama.cpp may keep some matrices in a wider format, and
    chooses scales of Q4_K and the like in another way. Norms, biases and embeddings are not rounded.

    The new model is a bridge of its own, without hooks; weights that are not rounded take no further memory.

    Args:
        model: the model to round, a `TransformerBridge` from `load` or your own; it is not changed.
        to: the format.
        blocks: blocks whose weights are rounded; all by default.
        parts: what is rounded in them: ``"attention"`` and ``"mlp"``, the default, or one of them.

    Returns:
        The rounded model, verified. Its results say what was done to the weights.

    Raises:
        InputError: a block that the model does not have; weights that are quantized already, or whose rows are not
            multiples of 32.
        ModelAccessError: the package gguf is not installed.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> four_bits = sl.quantize_weights(model, "Q4_0")
    >>> sl.top_tokens(four_bits, "How many ones are in the following sequence? 110 =", k=1)["token"].values.tolist()
    ['2']
    """
    chosen = list(range(len(model.blocks)))
    if blocks is not None:
        chosen = list(distinct(blocks, "blocks"))
    outside = [block for block in chosen if not 0 <= block < len(model.blocks)]
    if outside:
        raise InputError(
            f"blocks= has {outside[0]}, which the model does not have.",
            f"Use blocks 0 to {len(model.blocks) - 1}.",
        )
    sound = require_sound(model)
    wrapped: Any = sound.original_model
    config = getattr(wrapped, "config", None)
    if is_native(sound) or getattr(config, "quantization_config", None) is not None:
        raise InputError(
            f"The weights of this {type(wrapped).__name__} cannot be rounded: it is quantized already, or not a model "
            "of Hugging Face.",
            "Load the model in float32 or bfloat16.",
        )
    plain = rebuild_plain(sound)
    matrices = list(_matrices(sound, plain, chosen, distinct(parts, "parts")))
    size = sum(module.weight.nbytes for module in matrices)
    require_room(
        size, matrices[0].weight.device, "Rounded weights", "Round fewer blocks."
    )
    # A new parameter for each: the plain model shares the old ones with the given model.
    for module in matrices:
        weights = _rounded(module, to)
        module.weight = nn.Parameter(weights, requires_grad=False)
    name = str(sound.cfg.model_name)
    where = "all blocks"
    if blocks is not None:
        where = f"blocks {', '.join(map(str, chosen))}"
    note = f"rounded to {to} in {' and '.join(parts)} of {where}"
    origin = getattr(config, ORIGIN, None)
    if origin:
        note = f"{note}; before that {origin['note']}"
    setattr(plain.config, ORIGIN, {"note": note, "of": origin})
    made = bridge_around(plain, None, name)
    made.tokenizer = sound.tokenizer
    return require_sound(made)


def _matrices(
    model: Bridge, plain: nn.Module, blocks: list[int], parts: tuple[RoundedPart, ...]
) -> Iterator[Any]:
    """The modules of a plain model with a weight matrix, in some parts of some blocks."""
    adapter: Any = model.adapter
    # The adapter knows where the plain model has what the bridge calls so.
    layers = adapter.component_mapping["blocks"]
    for block in blocks:
        for part in parts:
            inside = layers.submodules[MODULES[part]].name
            part_of_block = plain.get_submodule(f"{layers.name}.{block}.{inside}")
            for name, weights in part_of_block.named_parameters():
                if weights.ndim > 2:
                    raise InputError(
                        f"Block {block} holds the weights of several experts in one tensor ({name}).",
                        "Choose parts=('attention',), or another model.",
                    )
                if weights.ndim == 2 and name.endswith(".weight"):
                    yield part_of_block.get_submodule(name.removesuffix(".weight"))


def _rounded(module: Any, to: GgufFormat) -> Tensor:
    """The weights of a module, rounded; GPT-2 stores them with the inputs first, and GGUF files with the outputs."""
    weights: Tensor = module.weight.detach()
    if type(module).__name__ == "Conv1D":
        return there_and_back(weights.T, to).T.contiguous()
    return there_and_back(weights, to)
