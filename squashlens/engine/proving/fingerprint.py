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

from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.engine.anatomy import named_modules
from squashlens.engine.canonical import Canonical
from squashlens.engine.digests import tensor_digests
from squashlens.engine.proving.rotary import names_from_last_pass

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
