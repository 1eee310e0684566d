"""Read on the host what a model is: everything that determines what it computes, as far as that is cheap.

A list of the modules says once what there is to read: of tensors which they are, where their memory is, how often
PyTorch saw them written to, and some of their entries; of modules the class, the plain attributes and the mode; the
configurations; the precision of products. On a GPU every bit of the weights is read too. The fingerprint covers every
bit, and is the same in every process and on every device.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import gcd
from operator import itemgetter
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.errors import InputError, ModelAccessError
from squashlens.model.agreement import is_finite
from squashlens.model.anatomy import forget_lengths, length_dependent_encodings
from squashlens.model.digests import parts, sha256, tensor_digest, text_of

HELD = "_squashlens"  # the attribute of a bridge in which its `Held` is, so that it goes with it
SAMPLED = 1024  # entries of a tensor that are read on a CPU, or more
APART = 0.9443  # of a row or column, 1 − φ⁻⁶, is the most between two of them: so all heads are read in turn
AGAIN = "Download the checkpoint again, or save it again with `save_pretrained`."

# Entries of a configuration that change no number: labels, versions, return options, and what is read elsewhere.
_LABELS = frozenset(
    """_name_or_path name_or_path model_name tokenizer_name _commit_hash transformers_version architectures
    architecture original_architecture dtype torch_dtype use_cache output_attentions output_hidden_states
    return_dict id2label label2id problem_type task_specific_params attn_implementation device n_devices seed
    initializer_range init_weights init_mode trust_remote_code n_params load_in_4bit from_checkpoint
    checkpoint_index checkpoint_label_type checkpoint_value tokenizer_prepends_bos tokenizer_appends_eos
    default_prepend_bos default_padding_side squashlens_origin
    _attn_implementation_internal""".split()  # noqa: SIM905
)
TRACES = (
    "_pattern",
    "_captured_pre_ln_residual",
)  # attributes in which a bridge keeps tensors of its last pass
# Attributes of modules that are bookkeeping, a trace of the last pass, or a label.
BOOKKEEPING = (
    frozenset(vars(nn.Module()))
    | frozenset(
        """_attn_scores _fired_hook_out _capture_hook_handles _capture_hooks_wired
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
    _lnf_probed _is_torch_compile""".split()  # noqa: SIM905
    )
    | {HELD, *TRACES}
)


class Reader:
    """What there is to read of a model, listed once."""

    def __init__(self, model: Bridge) -> None:
        from transformer_lens.hook_points import HookPoint

        named = {
            module: f"bridge{'.' * bool(name)}{name}"
            for name, module in model.named_modules()
        }
        named |= {
            module: name for name, module in model.original_model.named_modules()
        }  # their own names
        self.points: dict[str, HookPoint] = (
            model.hook_dict
        )  # by all their names; made anew each time it is read
        self.distinct = {
            point.name or name: point for name, point in self.points.items()
        }  # without aliases
        named |= {
            point: name for name, point in self.points.items() if point not in named
        }
        self.names = named  # of all modules
        self.every = [vars(module) for module in named]
        self.modules = [module for module in named if not isinstance(module, HookPoint)]
        self.spaces = [vars(module) for module in self.modules]
        self.attributes, self.children = [*map(tuple, self.spaces)], self._children()
        rotary = any("original_max_seq_len" in space for space in self.spaces)
        self.resets = rotary and bool(length_dependent_encodings(model))
        self.tables = [
            space[table]
            for space in self.spaces
            for table in ("_parameters", "_buffers")
        ]
        kept = [
            (s, sorted(key for key, value in s.items() if self._counts(key, value)))
            for s in self.spaces
        ]
        self.loose = [
            (space, key)
            for space, keys in kept
            for key in keys
            if isinstance(space[key], Tensor)
        ]
        self.plain = [
            (
                itemgetter(
                    "training",
                    *(key for key in keys if not isinstance(space[key], Tensor)),
                ),
                space,
            )
            for space, keys in kept
        ]
        inner: Any = model.original_model
        self.generation = vars(inner).get("generation_config")
        self.configs = _configurations(
            [model.cfg, vars(inner).get("cfg"), *(s.get("config") for s in self.spaces)]
        )

    def _children(self) -> list[int]:
        tables = (
            space["_modules"].values() for space in self.every if space["_modules"]
        )
        return [
            *map(id, chain(*tables, (space.get("config") for space in self.spaces)))
        ]

    def _counts(self, key: str, value: Any) -> bool:
        """Whether an attribute of a module says what it computes."""
        if key == "forward":  # ours are set while a hook is inside attention
            return not str(getattr(value, "__module__", "")).startswith("squashlens.")
        return key not in BOOKKEEPING and not self._of_the_last_pass(key)

    def _of_the_last_pass(self, key: str) -> bool:
        """Whether an encoding of positions that depends on the length of a pass makes this anew."""
        return (
            self.resets
            and key.endswith(("inv_freq", "max_seq_len_cached"))
            and "original_inv" not in key
        )

    def is_current(self) -> bool:
        """Whether no module and no attribute was added or removed, and no module and no configuration replaced."""
        return (
            self.attributes == [*map(tuple, self.spaces)]
            and self.children == self._children()
        )

    def tensors(self) -> list[Tensor]:
        """Every tensor of the model, once."""
        named = (pair for table in self.tables if table for pair in table.items())
        found = {
            id(value): value
            for key, value in named
            if value is not None and not self._of_the_last_pass(key)
        }
        return [
            *(
                found | {id(space[key]): space[key] for space, key in self.loose}
            ).values()
        ]

    def forget_last_pass(self) -> None:
        """Let go of what the bridge keeps of a pass: its graph would stay in memory, and no copy could be made."""
        for space in self.spaces:
            space.update(
                {
                    key: None
                    for key in TRACES
                    if isinstance(space.get(key), torch.Tensor)
                }
            )

    def settings(self) -> list[Any]:
        """What a model is beside its tensors, as values that are equal as long as nothing changed."""
        return [
            [*map(type, self.modules)],
            [read(space) for read, space in self.plain],
            [
                {key: value for key, value in vars(one).items() if key not in _LABELS}
                for one in self.configs
            ],
            getattr(self.generation, "eos_token_id", None),
        ]

    def surroundings(self) -> list[Any]:
        """What else decides about numbers, and is no part of the model: code, ways to attend, precision."""
        ways = [
            getattr(config, "_attn_implementation", None) for config in self.configs
        ]
        kinds = {
            *chain.from_iterable(kind.__mro__ for kind in {*map(type, self.modules)})
        } - {*nn.Module.__mro__}
        # Methods and properties: transformers keeps plain values on classes, as what it found out about them.
        code = {
            kind: {
                name: one for name, one in vars(kind).items() if hasattr(one, "__get__")
            }
            for kind in kinds
        }
        return [code, ways, precision()]

    def fingerprint(self, model: Bridge) -> str:
        """16 hexadecimal digits made from every bit of the weights, and from settings. Names and paths are left out."""
        forget_lengths(model)  # what the last pass left follows from the configuration
        names = {id(module): name for module, name in self.names.items()}
        names |= {id(config): "configuration" for config in self.configs}
        return sha256(
            "\n".join(
                [text_of(self.settings(), names), *map(tensor_digest, self.tensors())]
            )
        )[:16]


def _configurations(given: Iterable[Any]) -> list[Any]:
    """Configurations and those inside them, each once."""
    waiting, found = list(given), dict[int, Any]()
    for config in waiting:
        if hasattr(config, "__dict__") and id(config) not in found:
            found[id(config)] = config
            waiting += [
                inside for inside in vars(config).values() if hasattr(inside, "to_dict")
            ]
    return [*found.values()]


@dataclass
class Held:
    """What is kept in a bridge: the list, and what `state` knows of it. A copy of a bridge starts without."""

    reader: Reader | None = None
    known: Any = None

    def __deepcopy__(self, memo: Any) -> "Held":
        return Held()

    def __reduce__(self) -> Any:
        return Held, ()


def held_in(model: Bridge) -> Held:
    """What is kept in this bridge."""
    return vars(model).setdefault(HELD, Held())


def reader_of(model: Bridge, *, again: bool = False) -> Reader:
    """The list of a model; made `again` if it may have been changed, as between two calls."""
    held = held_in(model)
    if held.reader is None or (again and not held.reader.is_current()):
        held.reader = Reader(model)
    return held.reader


def precision() -> str:
    """The settings of PyTorch that say how products round; the first word is that of float32."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        known = torch.get_float32_matmul_precision()
    except (
        RuntimeError
    ):  # set by one of PyTorch's two interfaces, and then by the other
        known = "mixed"
    newer = [getattr(one, "fp32_precision", "none") for one in (torch.backends, matmul)]
    said = [
        "ieee" if setting == "none" else setting for setting in newer
    ]  # which is what it was before it was set
    names = (
        "bf16_reduced_precision_reduction",
        "fp16_reduced_precision_reduction",
        "fp16_accumulation",
    )
    return (
        f"{known} {said} {[getattr(matmul, f'allow_{name}', None) for name in names]}"
    )


def copied(value: Any) -> Any:
    """Containers as copies of themselves, which stay when theirs are written to; all else as it is."""
    if type(value) is dict:
        return {key: copied(one) for key, one in value.items()}
    return (
        type(value)(map(copied, value)) if type(value) in (list, tuple, set) else value
    )


def same(ours: Any, theirs: Any) -> bool:
    try:
        return ours == theirs
    except (
        RuntimeError,
        ValueError,
        TypeError,
    ):  # a tensor or an array, which is compared entry by entry
        return False


def marks_of(tensors: Sequence[Tensor]) -> list[Any]:
    """What PyTorch says of each tensor: which it is, where its memory is, and how often it was written to."""
    held = chain.from_iterable(map(parts, tensors))
    return [(id(one), one.data_ptr(), writes(one)) for one in held]


def writes(value: object) -> int:
    """How often PyTorch saw a tensor written to, which it does not count in inference mode; 0 of other objects."""
    return (
        value._version if isinstance(value, Tensor) and not value.is_inference() else 0
    )


def contents_of(tensors: Sequence[Tensor]) -> list[Any]:
    """What is read of the entries of tensors, some of which may be written to past PyTorch."""
    held = [*chain.from_iterable(map(parts, tensors))]
    with (
        torch.no_grad(),
        torch._C.DisableTorchFunction(),
    ):  # our own torch modes would change the copies
        far = [tensor for tensor in held if tensor.device.type != "cpu"]
        bits = (
            every_bit(far) if hasattr(torch, "hash_tensor") else []
        )  # from PyTorch 2.9
        return [
            sampled(held),
            [each.cpu().tolist() for each in bits],
        ]  # read while the host goes through them all


def sampled(tensors: Iterable[Tensor]) -> dict[Any, str]:
    """A digest of evenly spaced entries of all tensors of one device and dtype."""
    found: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.is_meta:
            raise InputError(
                "Some weights of this model are offloaded and not in memory.",
                "Load it onto a device.",
            )
        if tensor.numel():
            count, step = _places(tensor.shape)
            flat = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
            rows = flat.as_strided((count,), (step,), flat.storage_offset())
            found.setdefault((tensor.device, tensor.dtype), []).append(rows)
    return {
        kind: xxhash.xxh3_128_hexdigest(
            torch.cat(rows).detach().view(torch.uint8).cpu().numpy().data
        )
        for kind, rows in found.items()
    }


@cache
def _places(shape: torch.Size) -> tuple[int, int]:
    """How many entries are read, and how far apart: so far that every row and every column of a matrix is read."""
    count = shape.numel()
    most = max(1, int(APART * min(*shape[-2:], count / SAMPLED, count)))
    step = next(step for step in range(most, 0, -1) if gcd(step, *shape[-1:]) == 1)
    return (count - 1) // step + 1, step


def every_bit(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A number for each tensor, in which every bit counts, on its device; entries that change places are not seen."""
    flat = [
        tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
        for tensor in tensors
    ]
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in flat:
        by_device.setdefault(tensor.device, []).append(
            torch.hash_tensor(tensor).view(torch.int64)
        )
    return [*map(torch.stack, by_device.values())]


def require_finite(model: nn.Module, source: str) -> None:
    """Raise an error for NaN or infinite entries in any parameter or buffer, in one pass without copies."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, nn.Parameter) and tensor.is_inference():
            raise ModelAccessError(
                f"{name} of {source} was made in `torch.inference_mode()`, so PyTorch takes no derivatives with it.",
                "Leave that mode, and use a copy: `copy.deepcopy(model)`.",
            )
        if tensor.is_meta:
            raise ModelAccessError(
                f"{name} of {source} is offloaded, so its values cannot be checked.",
                "Give a device= that holds them all.",
            )
        for part in parts(tensor.detach()):
            if part.numel() == 0 or not part.is_floating_point():
                continue
            wide = (
                part.float() if part.element_size() == 1 else part
            )  # a quantizer's float8 has no minimum
            if is_finite(wide):
                continue
            wrong = (~torch.isfinite(wide)).nonzero()
            overflow = "Or load it with dtype=torch.bfloat16 or torch.float32, whose range is larger."
            raise ModelAccessError(
                f"{name} of {source} has {len(wrong)} NaN or infinite entries of {part.numel()}, the first at "
                f"{tuple(wrong[0].tolist())}.",
                f"{AGAIN} {overflow}" if part.dtype == torch.float16 else AGAIN,
            )
