"""A fingerprint of everything that determines what a model computes, equal in every process and on every device.

It covers every parameter and buffer, the configuration, and the plain attributes of every module (an epsilon, a scale,
the active adapter). It leaves out names and paths, hooks (results name them), the attention implementation, and
attributes that only depend on the last pass.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.engine.agreement import same_frequencies
from squashlens.engine.anatomy import named_modules
from squashlens.engine.canonical import Canonical
from squashlens.engine.digests import tensor_digests

# Entries of a configuration that change no number: labels, versions, return options, and what results state elsewhere.
_LABELS = frozenset(
    """_name_or_path name_or_path model_name tokenizer_name _commit_hash transformers_version architectures
    architecture original_architecture dtype torch_dtype use_cache output_attentions output_hidden_states
    return_dict id2label label2id problem_type task_specific_params attn_implementation device n_devices seed
    initializer_range init_weights init_mode trust_remote_code n_params load_in_4bit from_checkpoint
    checkpoint_index checkpoint_label_type checkpoint_value tokenizer_prepends_bos tokenizer_appends_eos
    default_prepend_bos default_padding_side squashlens_origin""".split()  # noqa: SIM905
)
# Attributes of modules that are bookkeeping, a trace of the last pass, or a label.
BOOKKEEPING = frozenset(vars(nn.Module())) | frozenset(
    """_attn_scores _pattern _captured_pre_ln_residual _fired_hook_out _capture_hook_handles _capture_hooks_wired
    _hook_cache _hook_registry _hook_registry_initialized _hook_alias_registry _property_alias_registry
    _block_alias_cache context_level _is_hf_initialized name_or_path _tokenizer tokenizer adapter cfg
    generation_config _n_params_total real_components submodules _driver processor all_tied_weights_keys _tp_plan
    _ep_plan _pp_plan _fsdp_plan _keep_in_fp32_modules _keep_in_fp32_modules_strict _no_split_modules
    _skip_keys_device_placement _keys_to_ignore_on_load_unexpected _keys_to_ignore_on_load_missing
    _keys_to_ignore_on_save _weight_conversions _use_kernels kernel_config _hf_hook _old_forward hf_device_map
    _loading_info loss_type gradient_checkpointing _output_capturing_hooks_installed _derived_position_ids_ok
    _capture_hf_cache
    _suppress_next_hook_in _current_batch_size _last_hf_cache _executing_container _router_hook_aliases _bound_dense
    _bound_dense_gate _mla_params_initialized _warned_missing _layout_verified _unembed_probed
    _lnf_probed""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Walk:
    """The modules of a model from one walk over them, which takes longer than what is read from them."""

    modules: list[tuple[str, nn.Module]]  # every one that takes part in a pass, once; hook points are left out
    names: dict[int, str]  # of all modules, also hook points, by id

    @classmethod
    def over(cls, model: Bridge) -> "Walk":
        """The modules as they are now."""
        from transformer_lens.hook_points import HookPoint

        inner, bridge = list(named_modules(model.original_model)), list(named_modules(model))
        own = {id(module) for _, module in inner}
        kept = [(name, module) for name, module in inner if not isinstance(module, HookPoint)]
        for name, module in bridge:
            if id(module) not in own and not isinstance(module, HookPoint):
                kept.append((f"bridge.{name}", module))
        return cls(kept, {id(module): name for name, module in (*bridge, *inner)})


def fingerprint(model: Bridge, walk: Walk | None = None) -> str:
    """The fingerprint: 16 hexadecimal digits made from parameters, buffers, configuration and module attributes."""
    whole = hashlib.sha256()
    for line in contents(model, walk or Walk.over(model)):
        whole.update(f"{line}\n".encode())
    return whole.hexdigest()[:16]


def contents(model: Bridge, walk: Walk) -> Iterator[str]:
    """What the fingerprint covers: one line for each item, always in the same order."""
    inner: Any = model.original_model
    names = dict(walk.names)
    for config, name in ((model.cfg, "bridge"), (getattr(inner, "config", None), "configuration")):
        names[id(config)] = name  # many modules refer to it; it is written once
    found = [(name, module, *_of_itself(module)) for name, module in walk.modules]
    kept = {  # a tensor that has several names is read once, and all of them together
        id(value): value
        for _, _, attributes, tensors in found
        for value in (*attributes.values(), *(tensor for _, tensor in tensors))
        if isinstance(value, Tensor)
    }
    names |= dict(zip(kept, tensor_digests([*kept.values()]), strict=True))
    text = Canonical(names, _LABELS).text
    yield f"configuration {configuration(inner)}"
    yield f"bridge {text(vars(model.cfg))}"
    if hasattr(inner, "cfg"):  # the blocks of a native model read it, and it may be another object
        yield f"native {text(vars(inner.cfg))}"
    yield f"ends {text(getattr(getattr(inner, 'generation_config', None), 'eos_token_id', None))}"
    for name, module, attributes, tensors in found:
        yield f"{name}: {type(module).__module__}.{type(module).__qualname__}"
        for key, value in sorted(attributes.items(), key=itemgetter(0)):
            yield f"{name}.{key} = {text(value)}"
        for key, tensor in sorted(tensors, key=itemgetter(0)):
            yield f"{name}.{key} {names[id(tensor)]}"


def _of_itself(module: nn.Module) -> tuple[dict[str, Any], list[tuple[str, Tensor]]]:
    """The attributes of a module, and its parameters and buffers, without those that only depend on the last pass."""
    from_last_pass = names_from_last_pass(module)
    attributes = _without(vars(module), BOOKKEEPING | from_last_pass if from_last_pass else BOOKKEEPING)
    if str(getattr(attributes.get("forward"), "__module__", "")).startswith("squashlens."):
        del attributes["forward"]  # set while one of our hooks is inside attention
    both = (*module._parameters.items(), *module._buffers.items())
    return attributes, [(key, tensor) for key, tensor in both if tensor is not None and key not in from_last_pass]


def configuration(inner: Any) -> str:
    """The configuration of a Hugging Face model as text, without entries that change no number."""
    config: Any = getattr(inner, "config", None)
    return Canonical(left_out=_LABELS).text(config.to_dict() if hasattr(config, "to_dict") else config)


def _without(values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}


# transformers writes the rotary frequencies of the last pass into a buffer, for "dynamic" and "longrope". They follow
# from the configuration and the length of the pass, so the fingerprint leaves them out, unless something else has
# changed them.
_LENGTH = "max_seq_len_cached"


def names_from_last_pass(module: nn.Module) -> frozenset[str]:
    """Names of the attributes and buffers of a module that follow from its configuration and its last pass."""
    found: set[str] = set()
    for prefix, layer_type, kind in _kinds(module):
        names = {f"{prefix}inv_freq", f"{prefix}long_inv_freq", f"{prefix}{_LENGTH}"}
        if _follow(module, prefix, layer_type, kind):
            found |= names
        found |= {_LENGTH, f"{prefix}{_LENGTH}"}
    return frozenset(found)


def _kinds(module: nn.Module) -> list[tuple[str, str | None, str]]:
    """Name prefix, layer type and kind of each rotary embedding of a module that depends on the length of a pass."""
    kind = vars(module).get("rope_type")
    kinds = kind.items() if isinstance(kind, dict) else [(None, kind)]
    return [
        ("" if layer_type is None else f"{layer_type}_", layer_type, name)
        for layer_type, name in kinds
        if isinstance(name, str) and ("dynamic" in name or name == "longrope")
    ]


def _follow(module: Any, prefix: str, layer_type: str | None, kind: str) -> bool:
    """Whether the frequencies are the original ones, or those that the configuration gives for some length."""
    now, original = module._buffers.get(f"{prefix}inv_freq"), getattr(module, f"{prefix}original_inv_freq", None)
    if not isinstance(now, Tensor) or not isinstance(original, Tensor):
        return False
    if kind == "longrope":
        long = _frequencies(module, kind, layer_type, _limit(module, layer_type) + 1)
        kept = vars(module).get(f"{prefix}long_inv_freq")
        return (kept is None or same_frequencies(kept, long)) and (
            same_frequencies(now, original) or same_frequencies(now, long)
        )
    length = int(getattr(module, f"{prefix}{_LENGTH}", getattr(module, _LENGTH, 0)))
    return same_frequencies(now, original) or same_frequencies(now, _frequencies(module, kind, layer_type, length))


def _limit(module: Any, layer_type: str | None) -> int:
    given = module.config.rope_parameters
    return int((given if layer_type is None else given[layer_type])["original_max_position_embeddings"])


def _frequencies(module: Any, kind: str, layer_type: str | None, length: int) -> Tensor:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    options = {} if layer_type is None else {"layer_type": layer_type}
    return ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=length, **options)[0]
