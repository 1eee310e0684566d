"""Whether a model is the one its checkpoint describes: every tensor there, none left over, every number finite.

transformers fills a gap in a checkpoint with random numbers, leaves out what it has no place for, and casts integers to
floating point. A proof that compares two copies of the loaded model sees none of it, so the loading report is
judged here. Tied weights may be stored once. Stored tensors that change no number may be left over, and these are all:

* causal masks and mask values, which old GPT-2 and GPT-NeoX checkpoints store: the stored mask must be causal;
* rotary frequencies and position ids, which old checkpoints store too: they must be the model's own;
* further blocks for multi-token prediction, if the model's class declares them: the next token does not depend on them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from squashlens.errors import ModelAccessError
from squashlens.model.checkpoint import AGAIN, FLOATING, Stored, listed, read_tensor
from squashlens.model.words import parts

_EXPERT = re.compile(r"(.*\bexperts?\.)(\d+)(\..+)")


def require_complete(model: Any, report: Mapping[str, Any], stored: Mapping[str, Stored], source: str) -> None:
    """Refuse a model with random weights in gaps, with tensors left over, of another shape, or of whole numbers."""
    held = model.state_dict(keep_vars=True)
    places = {name: _place(name, held, model.base_model_prefix) for name in stored}
    missing = sorted({*report["missing_keys"], *_quietly_missing(model, held, set(places.values()))})
    left = {name for name in stored if places[name] is None and _ignored(name, model)} | set(report["unexpected_keys"])
    left = sorted(name for name in left if not _changes_nothing(name, model, stored))
    twice = [name for name, place in places.items() if place != name and place in stored]
    shapes = [f"{n} (stored {tuple(a)}, needed {tuple(b)})" for n, a, b in sorted(report["mismatched_keys"])]
    wrong = {"missing": missing, "left over": left, "of another shape": shapes, "stored under two names": twice}
    wrong["numbered with gaps"] = _gaps(stored)
    complaints = [f"{what}: {listed(names)}" for what, names in wrong.items() if names]
    if complaints:
        raise ModelAccessError(
            f"The weights of {source} are not those of {type(model).__name__} as its config.json describes it; "
            f"{'; '.join(complaints)}.",
            f"Check that config.json belongs to these weights. {AGAIN}",
        )
    _refuse_integers(model, held, stored, places, source)
    _refuse_two_heads(model, source)


def require_finite(model: nn.Module, source: str) -> None:
    """Refuse NaN and infinite entries in any parameter or buffer; one pass over the weights, without copies."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ModelAccessError(
                f"{name} of {source} is offloaded, and weights that are on no device cannot be read.",
                "Give a device or a device_map= that holds them all.",
            )
        for part in parts(tensor.detach()):
            if part.numel() == 0 or not part.is_floating_point() or _finite(part):
                continue
            wrong = (~torch.isfinite(part.float() if part.element_size() == 1 else part)).nonzero()
            first = tuple(wrong[0].tolist())
            overflow = "Or load it with dtype=torch.bfloat16 or torch.float32, whose range is larger."
            raise ModelAccessError(
                f"{name} of {source} has {len(wrong)} of {part.numel()} entries NaN or infinite, the first at {first}.",
                f"{AGAIN} {overflow}" if part.dtype == torch.float16 else AGAIN,
            )


def _finite(part: Tensor) -> bool:
    """By the smallest and largest entry, which are NaN if any is: ten times faster than asking each entry."""
    flat = part.float() if part.element_size() == 1 else part  # which float8 has no minimum of
    return all(bool(torch.isfinite(end)) for end in torch.aminmax(flat))


def _place(name: str, held: Mapping[str, Any], prefix: str) -> str | None:
    """Where a stored tensor goes: checkpoints of the base model leave its prefix out, and the other way round."""
    spellings = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
    return next((spelling for spelling in spellings if spelling in held), None)


def _gaps(stored: Mapping[str, Stored]) -> list[str]:
    """Experts are stored one by one and stacked in the order of their numbers: a number left out moves the others."""
    numbers: dict[tuple[str, str], dict[int, str]] = {}
    for name in stored:
        if found := _EXPERT.fullmatch(name):
            numbers.setdefault((found[1], found[3]), {})[int(found[2])] = name
    most = {before: max(len(n) for (b, _), n in numbers.items() if b == before) for before, _ in numbers}
    return sorted(
        name for (before, _), found in numbers.items() for number, name in found.items() if number >= most[before]
    )


def _quietly_missing(model: Any, held: Mapping[str, Any], found: set[str | None]) -> Iterator[str]:
    """What the model's class lets be missing without a report."""
    patterns = model._keys_to_ignore_on_load_missing or ()
    tied = getattr(model, "all_tied_weights_keys", {})
    for name in held:
        if name not in found and name not in tied and any(re.search(p, name) for p in patterns):
            yield name


def _ignored(name: str, model: Any) -> bool:
    """Whether transformers leaves a tensor that it has no place for out of its report."""
    patterns = (*(model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")
    return any(re.search(pattern, name) for pattern in patterns)


def _changes_nothing(name: str, model: Any, stored: Mapping[str, Stored]) -> bool:
    if name not in stored:
        return False
    for pattern, check in _BUFFERS.items():
        if re.search(pattern, name):
            return check(read_tensor(name, stored[name]), model)
    block = re.search(r"(^|\.)layers\.(\d+)\.", name)
    beyond = block is not None and int(block.group(2)) >= int(model.config.get_text_config().num_hidden_layers)
    return _ignored(name, model) and (beyond or re.search(r"(^|\.)mtp(_\w+)?\.", name) is not None)


def _is_causal_mask(mask: Tensor, model: Any) -> bool:
    return mask.ndim >= 2 and torch.equal(mask, torch.ones_like(mask).tril())


def _is_mask_value(value: Tensor, model: Any) -> bool:
    return value.numel() == 1 and float(value) <= -1e4  # -1e4 in GPT-2, -1e9 in GPT-NeoX, or the dtype's lowest number


def _is_own_frequencies(stored: Tensor, model: Any) -> bool:
    """Equal to rotary frequencies of the model, but for the rounding to the dtype they were stored in."""
    own = (buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq"))
    rounding = max(torch.finfo(stored.dtype).eps, 1e-5) if stored.is_floating_point() else 0.0
    return any(
        b.shape == stored.shape and torch.allclose(b.double().cpu(), stored.double(), rtol=rounding, atol=0)
        for b in own
    )


def _is_count(stored: Tensor, model: Any) -> bool:
    return torch.equal(stored.flatten().long(), torch.arange(stored.numel()))


_BUFFERS: dict[str, Callable[[Tensor, Any], bool]] = {
    r"\b(attn|attention)\.bias$": _is_causal_mask,
    r"\bmasked_bias$": _is_mask_value,
    r"\brotary_emb\.inv_freq$": _is_own_frequencies,
    r"\bposition_ids$": _is_count,
}


def _refuse_integers(
    model: Any, held: Mapping[str, Any], stored: Mapping[str, Stored], places: Mapping[str, str | None], source: str
) -> None:
    """Whole numbers without the scales of a quantization would be cast to floating point as they are."""
    if getattr(model, "hf_quantizer", None) is not None:
        return  # which reads them
    if getattr(model.config, "quantization_config", None) is not None:
        raise ModelAccessError(
            f"config.json of {source} has a quantization_config that transformers did not apply.",
            "Load the checkpoint that it was quantized from; quantise='int8' rounds it here.",
        )
    for name, tensor in stored.items():
        place = places[name]
        takes_integers = place is not None and not held[place].is_floating_point()
        if tensor.dtype in FLOATING or takes_integers or (place is None and _changes_nothing(name, model, stored)):
            continue
        raise ModelAccessError(
            f"{name} of {source} is stored as {tensor.dtype} where floating point belongs, and config.json has no "
            "quantization_config that says how to read it.",
            "Load the checkpoint that it was quantized from; quantise='int8' rounds it here.",
        )


def _refuse_two_heads(model: Any, source: str) -> None:
    """A checkpoint that ties two weights and stores both with different numbers describes two models."""
    for one, other in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        first, second = model.get_parameter(one), model.get_parameter(other)
        if first is not second and not torch.equal(first.cpu(), second.cpu()):
            raise ModelAccessError(
                f"config.json of {source} ties {one} to {other}, and the weights hold different numbers for them.",
                "Set tie_word_embeddings in config.json to false if both are meant, or remove one of the tensors.",
            )
