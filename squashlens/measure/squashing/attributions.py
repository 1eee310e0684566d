"""Attribution methods of other libraries, as scores of tokens at the query.

captum and LXT come with the extra `compare`. All methods attribute the largest logit at the query, starting from the
token embeddings. None of them is a norm of the Jacobian.

LXT 2.1 cannot be imported as a whole with transformers 5, and its `monkey_patch` replaces methods of classes for the
whole process. So its rules for each architecture are imported alone, and put on the modules of one model.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Attribution, Bridge
from squashlens.engine.anatomy import n_blocks, pattern_site, residual_site
from squashlens.engine.budget import cotangents_on_graph
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.differentiating.spans import differentiable
from squashlens.engine.hooking.standing import ambient, require_no_backward_hooks
from squashlens.engine.native import is_native
from squashlens.engine.running.forward import forward, logits_of, require_understood
from squashlens.engine.state import measured
from squashlens.engine.verify import rebuild_plain
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.session import Session, streams_at

EMBEDDING = "embed.hook_out"
UNITS = {"value_weighted": "model units", "mean_attention": "1"}


@measured
def attribution(model: Bridge, prompts: PromptOrCapture, *, of: Attribution, query: int = -1) -> xr.DataArray:
    """Scores of tokens by an attribution method; zero after the query.

    With x_i the token embedding of token i, s the largest logit at the query, and all other embeddings as they are:

    - ``"gradient_times_input"``: ``‖x_i ⊙ ∂s/∂x_i‖₂`` (`captum.attr.InputXGradient`).
    - ``"integrated_gradients"``: the same with the gradient averaged over a straight path from zero embeddings, in
      captum's 50 steps (`captum.attr.IntegratedGradients`; Sundararajan et al. 2017).
    - ``"occlusion"``: ``|s(x) − s(x with x_i = 0)|`` (`captum.attr.Occlusion`; Zeiler and Fergus 2014).
    - ``"attn_lrp"``: ``|Σ_c R_ic|``, relevances of AttnLRP (LXT; Achtibat et al. 2024).
    - ``"value_weighted"``: ``‖Σ_h α_ni^h W_O^h v_i^h‖₂``, mean over blocks (Kobayashi et al. 2020).
    - ``"mean_attention"``: ``α_ni^h``, mean over heads and blocks.

    The root of the sum of squares over coordinates is how inseq and Jacobian Scopes summarize attributions of captum.
    Raises if the library of the method is not installed, or the method is not defined for this model.
    """
    session = Session.start(model, prompts, "attribution", of=of, query=query)
    n = session.query(query)
    if of not in UNITS:
        require_understood(session.model)
    rows = torch.zeros(session.ids.shape, dtype=torch.float64)
    for row, ids in zip(rows, session.ids, strict=True):
        row[: n + 1] = SCORES[of](session.model, ids[None], n).double().cpu()[: n + 1]
    return session.label(rows, of, f"attribution of the largest logit ({of})", UNITS.get(of, "logits"))


def captum_for(what: str) -> Any:
    """captum's attribution methods, or an error that says how to install them."""
    try:
        return import_module("captum.attr")
    except ImportError:
        raise InputError(
            f"{what} needs captum, which is not installed.", 'Install it: pip install "squashlens[compare]".'
        ) from None


class Outputs:
    """The output of one prompt as a function of its token embeddings."""

    def __init__(self, model: Bridge, ids: Int[Tensor, "1 position"], query: int) -> None:
        require_no_backward_hooks(model)
        self.model, self.ids, self.query = model, ids, query
        self.embeddings = streams_at(model, ids, [EMBEDDING])[EMBEDDING]
        self.batch = cotangents_on_graph(model, 1, ids.shape[1])
        with torch.no_grad():
            self.target = int(logits_of(model, self.y(self.embeddings))[0].argmax())

    def y(self, embeddings: Float[Tensor, "variant position d"]) -> Float[Tensor, "variant d"]:
        """The output of the final norm at the query, for each variant of the embeddings."""
        kept: list[Tensor] = []
        watch: list[tuple[str, Callable[[Tensor], Tensor | None]]] = [
            (EMBEDDING, lambda tensor: embeddings.to(tensor)),
            (residual_site("y", self.model), lambda tensor: kept.append(tensor[:, self.query])),
        ]
        forward(self.model, self.ids.expand(len(embeddings), -1).clone(), watch)
        return kept[0]

    def score(self, embeddings: Float[Tensor, "variant position d"]) -> Float[Tensor, " variant"]:
        """The logit that is largest for the prompt itself."""
        return logits_of(self.model, self.y(embeddings))[:, self.target]


def _gradient_times_input(model: Bridge, ids: Tensor, query: int) -> Tensor:
    captum, outputs = captum_for("Gradient times input"), Outputs(model, ids, query)
    with differentiable():
        found = captum.InputXGradient(outputs.score).attribute(outputs.embeddings.clone().requires_grad_())
    return found[0].detach().norm(dim=-1)


def _integrated_gradients(model: Bridge, ids: Tensor, query: int) -> Tensor:
    captum, outputs = captum_for("Integrated gradients"), Outputs(model, ids, query)
    with differentiable():
        leaf = outputs.embeddings.clone().requires_grad_()
        found = captum.IntegratedGradients(outputs.score).attribute(leaf, internal_batch_size=outputs.batch)
    return found[0].detach().norm(dim=-1)


def _occlusion(model: Bridge, ids: Tensor, query: int) -> Tensor:
    captum, outputs = captum_for("Occlusion"), Outputs(model, ids, query)
    window = (1, outputs.embeddings.shape[-1])  # a token's coordinates are set to 0 together, and have the same number
    with torch.no_grad():
        method = captum.Occlusion(outputs.score)
        found = method.attribute(outputs.embeddings, window, perturbations_per_eval=outputs.batch)
    return found[0, :, 0].abs()


def _value_weighted(model: Bridge, ids: Tensor, query: int) -> Tensor:
    blocks = range(n_blocks(model))
    sites = {block: (pattern_site(block), f"blocks.{block}.attn.hook_v") for block in blocks}
    kept = streams_at(model, ids, chain(*sites.values()))
    norms = torch.zeros(ids.shape[1], dtype=torch.float64)
    for block, (pattern, values) in sites.items():
        weights, value = kept[pattern][0, :, query], kept[values][0]
        each = weights.shape[0] // value.shape[1]
        written = value.repeat_interleave(each, dim=1).transpose(0, 1) @ model.blocks[block].attn.W_O.detach()
        norms += (weights[:, :, None] * written).sum(dim=0).norm(dim=-1).double().cpu() / len(blocks)
    return norms


def _mean_attention(model: Bridge, ids: Tensor, query: int) -> Tensor:
    sites = [pattern_site(block) for block in range(n_blocks(model))]
    kept = streams_at(model, ids, sites)
    return torch.stack([kept[site][0, :, query].double().mean(dim=0) for site in sites]).mean(dim=0)


SCORES: dict[str, Callable[[Bridge, Tensor, int], Tensor]] = {
    "gradient_times_input": _gradient_times_input,
    "integrated_gradients": _integrated_gradients,
    "occlusion": _occlusion,
    "attn_lrp": lambda model, ids, query: relevances(model, ids, query).abs(),
    "value_weighted": _value_weighted,
    "mean_attention": _mean_attention,
}


PACKAGE = "lxt.efficient"
NO_DECODERS = ("__init__", "bert", "vit_torch")


def relevances(model: Bridge, ids: Int[Tensor, "1 position"], query: int) -> Float[Tensor, " position"]:
    """The relevance of each token for the largest logit: Σ_c x_ic g_ic, with the gradient g under LXT's rules."""
    folder = _folder()
    if standing := ambient(model):
        raise UnsoundModelError(
            f"AttnLRP runs the plain model, without the hooks that are on yours ({'; '.join(standing)}).",
            "Remove the hooks to compare with AttnLRP.",
        )
    home = type(model.original_model).__module__
    families = sorted(file.stem for file in (folder / "models").glob("*.py") if file.stem not in NO_DECODERS)
    family = home.rpartition("modeling_")[2]
    if is_native(model) or family not in families:
        raise UnsoundModelError(
            f"LXT has no rules for {type(model.original_model).__name__}.", f"It has rules for: {', '.join(families)}."
        )
    plain = rebuild_plain(model)
    embeddings = plain.get_input_embeddings()(ids).detach()
    with _bare_packages(folder):
        rules = importlib.import_module(f"{PACKAGE}.models.{family}").attnLRP
        divided = importlib.import_module(f"{PACKAGE}.patches").wrap_attention_forward
    with differentiable(), _under_rules(plain, rules, sys.modules[home], divided):
        leaf = embeddings.clone().requires_grad_()
        logits = plain(inputs_embeds=leaf, use_cache=False).logits[0, query]
        (gradient,) = torch.autograd.grad(logits.max(), leaf)
    return (leaf * gradient)[0].sum(dim=-1).detach()


def _folder() -> Path:
    """The folder of LXT's rules for gradients, found without importing LXT."""
    found = importlib.util.find_spec("lxt") if sys.modules.get("lxt", True) is not None else None
    folder = None if found is None or found.origin is None else Path(found.origin).parent / "efficient"
    if folder is None or not (folder / "patches.py").exists():
        what = "not installed" if found is None else "too old"
        raise InputError(f"AttnLRP needs lxt, which is {what}.", 'Install it: pip install "squashlens[compare]".')
    return folder


@contextmanager
def _bare_packages(folder: Path) -> Iterator[None]:
    """Within the body, modules of LXT are imported without the packages around them, which import everything else."""
    packages = {PACKAGE: folder, f"{PACKAGE}.models": folder / "models"}
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if f"{name}.".startswith(f"{PACKAGE}.")}
    try:
        for name, path in packages.items():
            package = ModuleType(name)
            package.__path__ = [str(path)]
            sys.modules[name] = package
        yield
    finally:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{PACKAGE}.")]:
            del sys.modules[name]
        sys.modules.update(before)


@contextmanager
def _under_rules(plain: Any, rules: dict[Any, Any], home: Any, divided: Any) -> Iterator[None]:
    """Within the body, gradients through `plain` follow LXT's rules; other models are not touched."""
    modules = list(plain.modules())
    for target, patch in rules.items():
        if target is not home:  # a class, and `partial(patch_method, function, method_name=…)`
            for module in (module for module in modules if type(module) is target):
                vars(module)[patch.keywords.get("method_name", "forward")] = MethodType(patch.args[0], module)
    usual, among = home.eager_attention_forward, {id(module) for module in modules}
    under_rules = divided(usual)

    def attend(module: Any, *args: Any, **kwargs: Any) -> Any:
        return (under_rules if id(module) in among else usual)(module, *args, **kwargs)

    home.eager_attention_forward = attend
    try:
        yield
    finally:
        home.eager_attention_forward = usual
