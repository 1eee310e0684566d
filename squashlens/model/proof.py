"""Open a model for one public call, and keep what was found of it as long as it stays the same.

A call of a public function *opens* the model. Its snapshot is compared with the one for which the last findings hold
(`Proof`); with another one nothing is known, and the model is verified again. When the call ends, also by an error,
the snapshot is compared once more. Meanwhile gradients are off, and a call of another thread raises an error there.

    good = proof_of(model).once("shared passes", lambda: try_it(model))

runs `try_it` once for a proof.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch

from squashlens._typing import Bridge
from squashlens.bars import one_bar
from squashlens.checks.arguments import checked
from squashlens.errors import BusyModelError, InputError
from squashlens.model.hooking.standing import hooks_as_now, standing
from squashlens.model.memory import awaited
from squashlens.model.snapshot import (
    Kept,
    Layout,
    Snapshot,
    fingerprint,
    kept_of,
    layout_of,
)

PROOFS = 4  # of a model's states that are kept

T = TypeVar("T")
P = ParamSpec("P")


@dataclass
class Proof:
    """What was found of a model, which holds as long as its snapshot is this one; filled when something is asked.

    `status` says what was verified, or None before. A finding depends on the model alone, not on hooks: those belong to
    a run.
    """

    snapshot: Snapshot
    status: str | None = None
    findings: dict[Any, Any] = field(default_factory=dict)

    def once(self, what: Any, find: Callable[[], T]) -> T:
        """The result of `find`, computed once; errors are not kept."""
        if what not in self.findings:
            self.findings[what] = find()
        return self.findings[what]


def proof_of(model: Bridge) -> Proof:
    """What is known of the model, which is opened for this if it is not open."""
    kept = kept_of(model)
    if kept.proof is not None and kept.is_open():
        return kept.proof
    with opened(model) as proof:
        return proof


def fingerprint_of(model: Bridge) -> str:
    """The model's fingerprint, computed once for a proof."""
    proof = proof_of(model)
    return proof.once("fingerprint", lambda: fingerprint(model, layout_of(model)))


def settle(model: Bridge, proof: Proof) -> None:
    """Let the proof hold for the model as it is now: its first passes may have set up the bridge."""
    kept = kept_of(model)
    kept.layout = Layout(model)
    proof.snapshot = Snapshot.of(model, kept.layout)


def _proof_for(snapshot: Snapshot, kept: Kept) -> Proof:
    """The proof for this snapshot: the one among the last `PROOFS` that has it, or a new one without findings."""
    for proof in kept.proofs:
        if proof.snapshot == snapshot:
            return proof
    proof = Proof(snapshot)
    kept.proofs = [proof, *kept.proofs][:PROOFS]
    return proof


@contextmanager
def opened(model: Bridge) -> Iterator[Proof]:
    """Open the model, unless this thread has done so; raise an error if the body changes it."""
    kept = kept_of(model)
    if kept.proof is not None and kept.is_open():
        yield kept.proof
        return
    require_no_autocast()
    proof = _proof_for(Snapshot.of(model, layout_of(model)), kept)
    kept.proof = proof
    hooks = standing(model)
    # The test of users' hooks runs the model with exactly these (`run.users_hooks`).
    kept.at_begin = hooks_as_now(model) if hooks else None
    kept.owner = threading.get_ident()
    try:
        # Whatever mode the caller is in; errors that a device reports late belong to this call.
        with torch.inference_mode(False), torch.no_grad(), awaited():
            yield proof
    except Exception as error:
        _require_unchanged(model, kept, proof)
        if hooks:
            names = "; ".join(hook.name for hook in hooks)
            error.add_note(f"The model was run with hooks: {names}.")
        raise
    else:
        _require_unchanged(model, kept, proof)
    finally:
        kept.owner = None
        kept.at_begin = None
        if kept.layout is not None:
            kept.layout.forget_last_pass()


def _require_unchanged(model: Bridge, kept: Kept, proof: Proof) -> None:
    """Raise an error if the model is another one than was opened."""
    # Only a user's hook could write what PyTorch does not count: without any, entries of tensors are not read again.
    entries = proof.snapshot.entries if kept.at_begin is None else None
    if proof.snapshot != Snapshot.of(model, layout_of(model), entries):
        raise BusyModelError(
            "A tensor or a setting of the model was changed during a measurement.",
            "Change it before or after the call, not in a hook or another thread. Hooks keep counts and tensors in a "
            "dict or list of yours or in `hook.ctx`, not on modules. A model that writes into its own tensors as it "
            "runs, as recurrent ones do, is not measured.",
        )


def require_no_autocast() -> None:
    """Raise an error under autocast, which runs parts of the model in another dtype."""
    for kind in ("cpu", "cuda", "mps"):
        if torch.is_autocast_enabled(kind):
            raise InputError(
                f"Autocast is on for {kind}, which runs parts of the model in another dtype than results say.",
                "Leave `torch.autocast`, and load the model in the dtype of the run.",
            )


def require_bridge(model: object) -> None:
    """Raise an error for anything that is not a `TransformerBridge`."""
    # Before this is imported, no bridge exists.
    home = sys.modules.get("transformer_lens.model_bridge")
    if home is None or not isinstance(model, home.TransformerBridge):
        raise InputError(
            f"model must be a TransformerBridge, not {model.__class__.__name__}.",
            "Load one: `squashlens.load('tiny-gemma')`, or `TransformerBridge.boot_transformers(…)`.",
        )


def public(
    function: Callable[P, T],
    call: Callable[[inspect.BoundArguments], T] | None = None,
    cheaper: str = "",
    *,
    runs: bool = True,
) -> Callable[P, T]:
    """Wrap a public function of a model: arguments are checked, there is one bar, and the model is open if it `runs`.

    The model is the function's first argument. `call` gets the checked arguments, and calls the function; by default it
    is just called with them. `cheaper` says what takes less time; a long call shows it with its estimate.
    """
    parameters = inspect.signature(function).parameters
    first = next(iter(parameters.values()))

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = checked(function, args, kwargs)
        model: Any = bound.arguments.get(first.name, first.default)
        if first.annotation is Bridge:  # else the model may be None, or of another kind
            require_bridge(model)
        with one_bar(function.__name__, cheaper), ExitStack() as stack:
            if runs and getattr(model, "original_model", None) is not None:
                stack.enter_context(opened(model))
            if call is None:
                return function(*bound.args, **bound.kwargs)
            return call(bound)

    setattr(run, "__validated__", True)  # noqa: B010
    return run


def without_passes(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a public function of a `model` that does not run it, such as one that uses its tokenizer."""
    return public(function, runs=False)
