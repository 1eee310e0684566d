"""A fingerprint of everything that determines what a model computes, equal in every process and on every device.

It covers every parameter and buffer, the configuration, and the plain attributes of every module (an epsilon, a scale,
the active adapter). It leaves out names and paths, hooks (results name them) and the attention implementation. What a
pass leaves in position encodings is reset first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.engine.anatomy import named_modules
from squashlens.engine.canonical import Canonical, sha256
from squashlens.engine.digests import tensor_digests
from squashlens.engine.positions import forget_lengths

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

        inner = {id(module): (name, module) for name, module in named_modules(model.original_model)}
        bridge = {id(module): (f"bridge.{name}", module) for name, module in named_modules(model)}
        every = inner | {key: found for key, found in bridge.items() if key not in inner}
        kept = [found for found in every.values() if not isinstance(found[1], HookPoint)]
        return cls(kept, {key: name for key, (name, _) in every.items()})


def fingerprint(model: Bridge, walk: Walk | None = None) -> str:
    """The fingerprint: 16 hexadecimal digits made from parameters, buffers, configuration and module attributes."""
    forget_lengths(model)  # what the last pass left follows from the configuration
    return sha256("".join(f"{line}\n" for line in _contents(model, walk or Walk.over(model))))[:16]


def _contents(model: Bridge, walk: Walk) -> Iterator[str]:
    """What the fingerprint covers: one line for each item, always in the same order."""
    inner: Any = model.original_model
    names = dict(walk.names)
    for config, name in ((model.cfg, "bridge"), (getattr(inner, "config", None), "configuration")):
        names[id(config)] = name  # many modules refer to it; it is written once
    found = [(name, module, _held(module)) for name, module in walk.modules]
    # A tensor that has several names is read once, and all of them together.
    tensors = {id(value): value for _, _, held in found for value in held.values() if isinstance(value, Tensor)}
    names |= dict(zip(tensors, tensor_digests([*tensors.values()]), strict=True))
    text = Canonical(names, _LABELS).text
    yield f"configuration {configuration(inner)}"
    yield f"bridge {text(vars(model.cfg))}"
    if hasattr(inner, "cfg"):  # the blocks of a native model read it, and it may be another object
        yield f"native {text(vars(inner.cfg))}"
    yield f"ends {text(getattr(getattr(inner, 'generation_config', None), 'eos_token_id', None))}"
    for name, module, held in found:
        yield f"{name}: {type(module).__module__}.{type(module).__qualname__}"
        for key, value in sorted(held.items(), key=itemgetter(0)):
            yield f"{name}.{key} = {text(value)}"


def _held(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module itself, with its parameters and buffers."""
    held = {key: value for key, value in vars(module).items() if key not in BOOKKEEPING}
    if str(getattr(held.get("forward"), "__module__", "")).startswith("squashlens."):
        del held["forward"]  # set while one of our hooks is inside attention
    both = module._parameters | module._buffers
    return held | {key: tensor for key, tensor in both.items() if tensor is not None}


def configuration(inner: Any) -> str:
    """The configuration of a Hugging Face model as text, without entries that change no number."""
    config: Any = getattr(inner, "config", None)
    return Canonical(left_out=_LABELS).text(config.to_dict() if hasattr(config, "to_dict") else config)
