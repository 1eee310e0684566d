"""A fingerprint of everything that determines what a model computes, equal in every process and on every device.

It covers every parameter and buffer, the configuration, and the plain attributes of every module (an epsilon, a scale,
the active adapter). It leaves out names and paths, hooks (results name them) and the attention implementation. What a
pass leaves in position encodings is reset first.

The code that a pass runs has a digest of its own, since functions of a library can be replaced while a program runs, by
faster kernels or by rules for relevance. From the `forward` of every module, names are followed through the globals of
a function, and through the modules that these hold. Of functions of PyTorch and Python only the code counts, and not
what they call. The functions that another package put in place of a library's own are listed.
"""

import functools
import sys
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.engine.anatomy import forget_lengths
from squashlens.engine.digests import Canonical, contents_of, names_in, sha256, tensor_digests
from squashlens.engine.hooking.hook import without_partials

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

    modules: Sequence[tuple[str, nn.Module]]  # every one that takes part in a pass, once; hook points are left out
    names: dict[int, str]  # of all modules, also hook points, by id

    @classmethod
    def over(cls, model: Bridge) -> "Walk":
        """The modules as they are now."""
        from transformer_lens.hook_points import HookPoint

        inner = {id(module): (name, module) for name, module in model.original_model.named_modules()}
        bridge = {id(module): (f"bridge.{name}", module) for name, module in model.named_modules()}
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
    found = [(name, module, _attributes_of(module)) for name, module in walk.modules]
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


def _attributes_of(module: nn.Module) -> dict[str, Any]:
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


# Packages whose functions may appear in the code of another library without counting as replaced.
LIBRARIES = {"torch", "transformers", "transformer_lens", "accelerate", "huggingface_hub", "numpy", "einops", "peft"}
LIBRARIES |= {"jaxtyping", "beartype", "kernels", "packaging", "torchao", "safetensors", "tqdm", "typing_extensions"}
LIBRARIES |= {"squashlens", *sys.stdlib_module_names}
_START = ("__call__", "_call_impl", "_wrapped_call_impl", "forward")
_OPERATORS = {f"__{r}{o}__" for o in ("matmul", "add", "sub", "mul", "truediv", "pow") for r in ("", "r", "i")}
_OPERATORS |= {"__neg__", "__getitem__", "__setitem__"}


@dataclass(frozen=True)
class Code:
    """The digest of the code, the functions that another package replaced, and what it does not show of these."""

    digest: str
    replaced: tuple[str, ...]
    unseen: tuple[str, ...] = ()


def code_of(walk: Walk) -> Code:
    """The code of all modules in a walk. It is read again only if something that was looked up has changed."""
    kinds = frozenset(type(module) for _, module in walk.modules)
    known = _known.get(kinds)
    if known is None or not known.holds():
        known = _known[kinds] = _Reading.of(kinds)
    if not known.foreign:
        return known.code
    canonical = Canonical()  # what a foreign function closes over or reads may change in place
    now = "\n".join(canonical.text(value) for value in known.foreign)
    return replace(known.code, digest=sha256(f"{known.code.digest} {now}")[:16], unseen=tuple(canonical.unseen))


@dataclass
class _Reading:
    """What was looked up while the code of some classes was read."""

    found: dict[tuple[str, str], tuple[Mapping[str, Any], Any]] = field(default_factory=dict)  # by label and name
    defined: dict[type, Set[str]] = field(default_factory=dict)  # of the names, those that each class defines itself
    codes: dict[types.FunctionType, types.CodeType] = field(default_factory=dict)
    names: set[str] = field(default_factory=lambda: {*_START, *_OPERATORS})
    lines: list[str] = field(default_factory=list)
    foreign: list[Any] = field(default_factory=list)
    code: Code = field(default_factory=lambda: Code("", ()))

    def holds(self) -> bool:
        return (
            all(where.get(name) is value for (_, name), (where, value) in self.found.items())
            and all(function.__code__ is code for function, code in self.codes.items())
            # A method that was inherited may be defined now.
            and all(self.names.intersection(vars(kind)) == own for kind, own in self.defined.items())
        )

    @classmethod
    def of(cls, kinds: frozenset[type]) -> "_Reading":
        reading = cls()
        bases = sorted({b for kind in kinds for b in kind.__mro__ if b is not object}, key=_label)
        bases.append(torch.Tensor)
        before = -1
        while before < len(reading.names):  # a method may use names whose methods come next
            before = len(reading.names)
            for base in bases:
                for name in sorted(reading.names & vars(base).keys()):
                    reading.look_up(_label(base), vars(base), name)
        reading.defined = {base: reading.names.intersection(vars(base)) for base in bases}
        origins = {(label, name): _foreign(label, value, name) for (label, name), (_, value) in reading.found.items()}
        replaced = {f"{'.'.join(at)}: {origin}": reading.found[at][1] for at, origin in origins.items() if origin}
        reading.foreign = [replaced[name] for name in sorted(replaced)]
        reading.code = Code(sha256("\n".join(sorted(reading.lines)))[:16], tuple(sorted(replaced)))
        return reading

    def look_up(
        self, label: str, where: Mapping[str, Any], name: str, names: Set[str] = frozenset(), depth: int = 4
    ) -> None:
        """Follow a name in a module or class; if it is a module itself, the `names` in it, also in its modules."""
        value = where[name]
        if isinstance(value, types.ModuleType):
            for inner in sorted(names & vars(value).keys()) if depth else ():
                self.look_up(value.__name__, vars(value), inner, names, depth - 1)
            return
        functions = _functions(value)
        if (label, name) in self.found or (not functions and (isinstance(value, type) or not callable(value))):
            return
        self.found[label, name] = where, value
        self.lines.append(f"{label}.{name} = {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}")
        for function in functions:
            self.read(function, inside=_is_followed(function) or label.startswith("torch.nn.modules"))

    def read(self, function: types.FunctionType, inside: bool) -> None:
        """The code of one function and, if it is followed, of those that it names."""
        if function in self.codes:
            return
        self.codes[function] = function.__code__
        self.lines.append(Canonical().code(function.__code__))
        if inside:
            names, held = names_in(function.__code__), function.__globals__
            self.names |= names
            for name in sorted(names & held.keys()):
                self.look_up(str(held.get("__name__")), held, name, names)


_known: dict[frozenset[type], _Reading] = {}


def _functions(value: Any) -> list[types.FunctionType]:
    """The functions in an attribute: of a property, a method, a decorator, a partial."""
    found, waiting = dict[types.FunctionType, None](), [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, types.FunctionType) and one not in found:
            found[one] = None
            waiting += map(contents_of, one.__closure__ or ())
        elif isinstance(one, staticmethod | classmethod):
            waiting.append(one.__func__)
        elif isinstance(one, property):
            waiting += [one.fget, one.fset]
        elif isinstance(one, functools.partial):
            waiting.append(one.func)
    return list(found)


def _label(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_followed(function: types.FunctionType) -> bool:
    top = str(function.__module__).partition(".")[0]
    return top != "torch" and top not in sys.stdlib_module_names


def _foreign(label: str, value: Any, name: str) -> str | None:
    """The origin of a function that belongs neither to a library nor to the package where it stands; otherwise None."""
    value = without_partials(value)
    if isinstance(value, staticmethod | classmethod | property):
        return None
    origin = getattr(value, "__module__", None)
    if not callable(value) or not isinstance(origin, str):
        return None
    if origin.partition(".")[0] in LIBRARIES | {label.partition(".")[0]}:
        return None
    return f"{origin}.{getattr(value, '__qualname__', name)}"
