"""Relevances of AttnLRP, with the rules of the library LXT on the plain model.

LXT 2.1 cannot be imported as a whole with transformers 5, and its `monkey_patch` replaces methods of classes for the
whole process. Its rules for each architecture are modules of their own. They are imported alone, and put on the modules
of one model.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.differentiating.spans import differentiable
from squashlens.engine.hooking.standing import ambient
from squashlens.engine.native import is_native
from squashlens.engine.proving.proof import rebuild_plain
from squashlens.errors import InputError, UnsoundModelError

PACKAGE = "lxt.efficient"
NO_DECODERS = ("__init__", "bert", "vit_torch")


def relevances(model: Bridge, ids: Int[Tensor, "1 position"], query: int) -> Float[Tensor, " position"]:
    """The relevance of each token for the largest logit at the query: Σ_c x_ic g_ic, g the gradient under LXT's rules.

    Raises:
        InputError: LXT is not installed.
        UnsoundModelError: LXT has no rules for the architecture, or hooks are on the model.
    """
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
