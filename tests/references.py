"""Slow twins: the same quantities by other means, on plain Hugging Face models, without any hook of ours."""

import copy
import hashlib
import inspect
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import plotly.io
import torch
import xarray as xr
from torch import Tensor

from squashlens.measure.registration import calling
from squashlens.run.run import Run

HOOK_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def raw(function: Any) -> Any:
    """A public function without the checks of types, which would answer first."""
    bare = inspect.unwrap(function)

    def call(*args: Any, **options: Any) -> Any:
        with calling(bare.__name__, options):
            return bare(*args, **options)

    return call


def path_sum(
    patterns: Sequence[np.ndarray], query: int, *, beta1: float = 1.0, gain: float = 1.0
) -> np.ndarray:
    """Theorem 5.1 by writing out every path: all interior positions of all walks from token i to the query."""
    n, blocks = patterns[0].shape[0], len(patterns)
    total = np.zeros(n)
    for start in range(n):
        for interior in itertools.product(range(n), repeat=blocks - 1):
            walk = (
                start,
                *interior,
                query,
            )  # position before block 0, …, after the last block
            weight = 1.0
            for block, (key, position) in enumerate(itertools.pairwise(walk)):
                weight *= gain * (
                    patterns[block][position, key] / beta1 + (position == key)
                )
            total[start] += weight
    return total


def plain_outputs(plain: Any, ids: Tensor, embeddings: Tensor | None = None) -> Any:
    """The plain model's logits, hidden states and attentions, from ids or from v⁽⁰⁾'s raw material."""
    return plain(
        **({"input_ids": ids} if embeddings is None else {"inputs_embeds": embeddings}),
        use_cache=False,
        output_attentions=True,
        output_hidden_states=True,
    )


def mean_patterns(plain: Any, ids: Tensor) -> list[np.ndarray]:
    """The plain model's attention of every block on one prompt, averaged over heads, in float64."""
    return [
        a[0].detach().double().mean(dim=0).numpy()
        for a in plain_outputs(plain, ids).attentions
    ]


def first_residual(plain: Any, ids: Tensor) -> Tensor:
    """What `inputs_embeds` must be so that the plain model computes what it computes from ids."""
    return plain.get_input_embeddings()(ids).detach()


def jacobian_by_jacrev(plain: Any, ids: Tensor, query: int) -> Tensor:
    """∂y_n/∂v⁽⁰⁾ as (position, d, d) with torch.func.jacrev, through the plain model.

    v⁽⁰⁾ is what `inputs_embeds` becomes before block 0: itself, or, for GPT-2, itself plus the position
    embedding, whose derivative is the identity. Gemma scales the embedding inside `embed_tokens`.
    """
    start = first_residual(plain, ids)

    def last(embeddings: Tensor) -> Tensor:
        return plain_outputs(plain, ids, embeddings).hidden_states[-1][0, query]

    return torch.func.jacrev(last)(start)[:, 0].transpose(0, 1)


@contextmanager
def float64_throughout() -> Iterator[None]:
    """The modelling code's words for float32 mean float64 here: a plain float64 model then has no float32 inside."""
    names = {name: getattr(torch, name) for name in ("float32", "float")}
    narrow = torch.Tensor.float
    try:
        for name in names:
            setattr(torch, name, torch.float64)
        torch.Tensor.float = torch.Tensor.double
        yield
    finally:
        for name, dtype in names.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = narrow


def float64_twin(plain: Any) -> Any:
    """A float64 copy of a plain model; to be run in `float64_throughout`."""
    twin = copy.deepcopy(plain).double()
    if getattr(twin.config, "_experts_implementation", None) is not None:
        twin.set_experts_implementation("eager")  # the others have no float64
    return twin


def exact_norms(
    plain: Any,
    ids: Tensor,
    freeze: Sequence[str] = (),
    query: int = -1,
    source: int = 0,
    order: Any = 2,
) -> np.ndarray:
    """The norms of ∂y_n/∂v_i of the model in float64 throughout, from the plain Hugging Face model."""
    with float64_throughout():
        twin = float64_twin(plain)
        twin = frozen_model(twin, ids[None], freeze) if freeze else twin
        rows = block_jacobian(twin, ids[None], source, "y", [query % len(ids)])[0]
    return torch.linalg.matrix_norm(rows.transpose(0, 1), ord=order).numpy()


def block_jacobian(
    plain: Any,
    ids: Tensor,
    bottom: int,
    top: int | str,
    queries: Sequence[int] | None = None,
) -> Tensor:
    """∂v⁽ᵗᵒᵖ⁾_j/∂v⁽ᵇᵒᵗᵗᵒᵐ⁾_i as (j, d, i, d), row by row, with PyTorch hooks on the plain model's own blocks."""
    inner, norm = plain.base_model, final_norm(plain)
    layers = next(
        getattr(inner, n) for n in ("layers", "h", "blocks") if hasattr(inner, n)
    )
    found: dict[str, Tensor] = {}

    def plant(_module: Any, args: Any, options: Any) -> Any:
        entering = args[0] if args else options["hidden_states"]
        found["leaf"] = entering.detach().clone().requires_grad_()
        return (
            ((found["leaf"], *args[1:]), options)
            if args
            else (args, options | {"hidden_states": found["leaf"]})
        )

    def read(_module: Any, args: Any, options: Any) -> None:
        found["output"] = args[0] if args else options["hidden_states"]

    handles = [layers[bottom].register_forward_pre_hook(plant, with_kwargs=True)]
    if top == "y":
        handles.append(
            norm.register_forward_hook(
                lambda _module, _args, out: found.__setitem__("output", out)
            )
        )
    else:
        above = norm if top == len(layers) else layers[int(top)]
        handles.append(above.register_forward_pre_hook(read, with_kwargs=True))
    try:
        with torch.enable_grad():
            plain(ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    output = (
        found["output"][0] if queries is None else found["output"][0, list(queries)]
    )
    rows = [
        torch.autograd.grad(entry, found["leaf"], retain_graph=True)[0][0]
        for entry in output.flatten()
    ]
    return torch.stack(rows).reshape(*output.shape, *rows[0].shape)


def jacobian_by_differences(plain: Any, ids: Tensor, query: int, step: float) -> Tensor:
    """∂y_n/∂v⁽⁰⁾ as (position, d, d) by central differences."""
    start = first_residual(plain, ids)
    n, d = start.shape[1:]
    columns = torch.zeros(n, d, d, dtype=start.dtype)
    with torch.no_grad():
        for position in range(n):
            for coordinate in range(d):
                moved = start.clone()
                moved[0, position, coordinate] += step
                up = plain_outputs(plain, ids, moved).hidden_states[-1][0, query]
                moved[0, position, coordinate] -= 2 * step
                down = plain_outputs(plain, ids, moved).hidden_states[-1][0, query]
                columns[position, :, coordinate] = (up - down) / (2 * step)
    return columns


def with_attention(plain: Any, name: str, attend: Any) -> Any:
    """A copy of the plain model with another attention function, to be known under a name; it gets whole masks."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, eager_mask)
    changed = copy.deepcopy(plain)
    changed.set_attn_implementation(name)
    return changed


def frozen_attention_model(plain: Any, ids: Tensor) -> Any:
    """A copy of the plain model whose attention always uses the patterns it has on `ids`, as constants."""
    patterns = [a.detach() for a in plain_outputs(plain, ids).attentions]

    def constant(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any
    ) -> Any:
        groups = query.shape[1] // value.shape[1]
        weights = patterns[module.layer_idx]
        mixed = weights @ value.repeat_interleave(groups, dim=1)
        return mixed.transpose(1, 2).contiguous(), weights

    return with_attention(plain, "squashlens_constant", constant)


def _kind(model: Any, name: str, module: Any, freeze: Sequence[str]) -> str | None:
    """What of a module is to be a number: a norm's factor, a gate, the ratio of an activation; or nothing."""
    if "norms" in freeze and "Norm" in type(module).__name__:
        return (
            "layer"
            if type(module).__name__ in ("LayerNorm", "OlmoLayerNorm")
            else "rms"
        )
    parent, _, own = name.rpartition(".")
    if "gates" in freeze and own in ("act", "act_fn", "activation_fn"):
        return "gate" if hasattr(model.get_submodule(parent), "gate_proj") else "ratio"
    return None


def frozen_model(plain: Any, ids: Tensor, freeze: Sequence[str]) -> Any:
    """A copy of the plain model in which patterns, norm factors and gates are the numbers they are on `ids`.

    A norm is x ⊙ m (RMS) or (x − mean) ⊙ m + bias, an un-gated activation x ⊙ m, with m what came out divided by
    what went in; a gate is what came out.
    """
    frozen = (
        frozen_attention_model(plain, ids)
        if "attention" in freeze
        else copy.deepcopy(plain)
    )
    kinds = {
        name: kind
        for name, module in frozen.named_modules()
        if (kind := _kind(frozen, name, module, freeze))
    }

    def centred(x: Tensor, kind: str) -> Tensor:
        return x - x.mean(dim=-1, keepdim=True) if kind == "layer" else x

    constants: dict[str, Tensor] = {}

    def held(name: str, kind: str) -> Any:
        """A hook that keeps what it sees in the first pass, and gives it in every later one."""

        def use(module: Any, args: Any, out: Tensor) -> Tensor | None:
            shift = getattr(module, "bias", 0) if kind == "layer" else 0
            if name not in constants:
                constants[name] = (
                    out if kind == "gate" else (out - shift) / centred(args[0], kind)
                ).detach()
                return None
            return (
                constants[name]
                if kind == "gate"
                else centred(args[0], kind) * constants[name] + shift
            )

        return use

    for name, kind in kinds.items():
        frozen.get_submodule(name).register_forward_hook(held(name, kind))
    with torch.no_grad():
        frozen(ids, use_cache=False)
    return frozen


def last_streams(plain: Any, ids: Sequence[int]) -> Tensor:
    """v⁽⁰⁾ … v⁽ᴸ⁾ and y at the last token of one prompt, (layer, d), from a forward pass of its own."""
    seen: list[Tensor] = []
    handle = final_norm(plain).register_forward_pre_hook(
        lambda _module, args: seen.append(args[0])
    )
    try:
        with torch.no_grad():
            states = plain(
                torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True
            ).hidden_states
    finally:
        handle.remove()
    return torch.stack([state[0, -1] for state in (*states[:-1], seen[0], states[-1])])


def passing(
    plain: Any, ids: Sequence[int], *modules: Any
) -> list[tuple[Tensor, Tensor]]:
    """What enters and what leaves each of some modules, (position, d), in a forward pass of one prompt."""
    seen: dict[Any, tuple[Tensor, Tensor]] = {}

    def look(module: Any, args: Any, named: Any, out: Any) -> None:
        entering = args[0] if args else named["hidden_states"]
        seen[module] = entering[0], (out[0] if isinstance(out, tuple) else out)[0]

    handles = [
        module.register_forward_hook(look, with_kwargs=True) for module in modules
    ]
    try:
        with torch.no_grad():
            plain(torch.tensor([list(ids)]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return [seen[module] for module in modules]


def distances_equal(
    here: xr.Dataset, plain: Any, pair: Any, name: str = "distance", norm: str = "linf"
) -> np.ndarray:
    """The distances of v and v* at each layer and of y, from two plain passes, which those of a result must equal."""
    order = {"linf": np.inf, "l1": 1, "l2": 2}[norm]
    v, star = (
        last_streams(plain, ids).double().numpy() for ids in (pair.v, pair.v_star)
    )
    expected = np.linalg.norm(v - star, ord=order, axis=-1)
    off = np.abs(np.append(here[name], here[f"{name}_y"]) - expected)
    assert (off <= 1e-5 * np.linalg.norm(v, ord=order, axis=-1)).all(), (
        here.coords,
        off,
    )
    return expected


def model_without(plain: Any, places: Sequence[int], from_block: int, what: str) -> Any:
    """A copy of the plain model whose attention, from a block on, goes without the tokens at `find_positions`.

    ``"keys"``: for each query by itself, the other keys are picked out and everything else is left away, key and
    value alike. ``"values"``: attended to as before, with nothing to give. ``"weights"``: the weights of other tokens
    to them are set to 0 behind the softmax.
    """

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        **options: Any,
    ) -> Any:
        groups = query.shape[1] // value.shape[1]
        key, value = (t.repeat_interleave(groups, dim=1).clone() for t in (key, value))
        acting = module.layer_idx >= from_block
        if acting and what == "values":
            value[:, :, [p for p in places if p < value.shape[2]]] = 0
        cap, scale = (
            options.get("softcap"),
            options.get("scaling") or query.shape[-1] ** -0.5,
        )
        mixed = torch.zeros_like(query)
        for q in range(query.shape[2]):
            kept = [
                k
                for k in range(q + 1)
                if (mask is None or mask[0, 0, q, k] > -1)
                and not (acting and what == "keys" and k in places and k != q)
            ]
            logits = query[:, :, q : q + 1] @ key[:, :, kept].transpose(-1, -2) * scale
            logits = logits if cap is None else cap * torch.tanh(logits / cap)
            weights = logits.softmax(dim=-1)
            if acting and what == "weights":
                weights = weights * torch.tensor(
                    [k == q or k not in places for k in kept]
                )
            mixed[:, :, q : q + 1] = weights @ value[:, :, kept]
        return mixed.transpose(1, 2).contiguous(), None

    return with_attention(plain, "squashlens_without", attend)


def model_with_streams(
    plain: Any, places: Sequence[int], from_block: int, rows: Sequence[Tensor]
) -> Any:
    """A copy of the plain model in which, from a block on, `rows[b]` enter block b at `find_positions`: PyTorch hooks
    alone."""
    changed = copy.deepcopy(plain)

    def put(block: int) -> Any:
        def before(_module: Any, args: Any, kwargs: Any) -> Any:
            stream = (args[0] if args else kwargs["hidden_states"]).clone()
            here = [k for k, place in enumerate(places) if place < stream.shape[1]]
            stream[:, [places[k] for k in here]] = rows[block][here]
            return (stream, *args[1:]), {
                k: v for k, v in kwargs.items() if k != "hidden_states"
            }

        return before

    for block, layer in enumerate(layers_of(changed)):
        if block >= from_block:
            layer.register_forward_pre_hook(put(block), with_kwargs=True)
    return changed


def final_norm(plain: Any) -> Any:
    """The norm after the last block of a plain model."""
    names = ("norm", "ln_f", "final_layernorm", "final_layer_norm", "norm_f")
    return next(
        getattr(plain.base_model, name)
        for name in names
        if hasattr(plain.base_model, name)
    )


def layers_of(plain: Any) -> Any:
    """The blocks of a plain model."""
    inner = plain.base_model
    return inner.h if hasattr(inner, "h") else inner.layers


def fingerprint(model: Any) -> dict[str, Any]:
    """Everything a measurement must leave as it was, by means of its own."""
    weights = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        content = value.detach().cpu().contiguous().view(torch.uint8).numpy()
        weights.update(name.encode() + content.tobytes())
    parameters = dict(model.named_parameters())
    hooks = {}
    for whole in (model, model.original_model):
        for name, module in whole.named_modules():
            for table in HOOK_TABLES:
                hooks[type(whole), name, table] = len(getattr(module, table))
    for name, point in model.hook_dict.items():
        hooks["points", name] = len(point.fwd_hooks) + len(point.bwd_hooks)
    return {
        "weights": weights.hexdigest(),
        "dtypes": {n: str(p.dtype) for n, p in parameters.items()},
        "grad": {n: (p.requires_grad, p.grad is None) for n, p in parameters.items()},
        "devices": {n: str(p.device) for n, p in parameters.items()},
        "training": {n: m.training for n, m in model.named_modules()},
        "hooks": hooks,
        "decoding": model.original_model.generation_config.to_dict(),
        "attention": model.original_model.config._attn_implementation,
    }


def process_state() -> tuple[Any, ...]:
    """What a call must leave as it was: generators, settings of PyTorch, and the template of figures.

    Python's generator is left out where types are checked, since the type checker draws from it.
    """
    numpy_state: Any = np.random.get_state()
    return (
        None if os.environ.get("SQUASHLENS_TYPED") else random.getstate(),
        numpy_state[1].tolist(),
        torch.random.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        plotly.io.templates.default,
        torch.get_num_threads(),
    )


def run_of(model: Any) -> Run:
    """A run of no function, for tests of what is below the measurements."""
    return Run.open(model, "test")
