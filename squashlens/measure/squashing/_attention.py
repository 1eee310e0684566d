"""The attention patterns that path bounds multiply: those of the model, or uniform and topological nulls."""

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import ATTENTION, AttentionKind
from squashlens.engine.anatomy import windows
from squashlens.engine.memory import require_room, to_cpu
from squashlens.engine.proving.premises import require_attention_alone
from squashlens.engine.running.forward import attention_of, head_mean
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.theory.attention import Attention
from squashlens.theory.bounds.paths import Pattern, Uniform, Visible


def one_hot(session: Session, query: int) -> Float[Tensor, "prompt position"]:
    """A row for each prompt that is 1 at the query and 0 elsewhere."""
    row = torch.zeros(len(session.ids), session.positions, dtype=torch.float64)
    row[:, session.query(query)] = 1.0
    return row


def patterns_of(session: Session, attention: AttentionKind, blocks: range) -> dict[int, Pattern]:
    """The attention of each block, averaged over heads: of a null, or of the model. A capture's patterns are used."""
    require_attention_alone(session.model)
    if attention != "model":
        make = Uniform if attention == "uniform" else Visible
        native = windows(session.model, session.positions)
        return {b: make(native[b]) for b in blocks}
    held = {} if session.capture is None else session.capture.patterns
    if not held:
        return dict(attention_of(session.model, session.ids, blocks))
    missing = sorted(set(blocks) - set(held))
    if missing:
        raise InputError(
            f"The capture has no attention patterns of blocks {missing}.",
            "Capture the prompt with layers=None, or with keep='residuals' so that they are computed here.",
        )
    return dict(zip(blocks, to_cpu([head_mean(held[b]) for b in blocks]), strict=True))


def written_out(session: Session, pattern: Pattern) -> Float[Tensor, "query key"]:
    """The attention pattern of one prompt as a full n × n matrix."""
    n = session.positions
    require_room(n * n * 8, torch.device("cpu"), "A full attention pattern", "Use a shorter prompt.")
    if isinstance(pattern, Uniform | Visible):
        return pattern.pushed(torch.eye(n, dtype=torch.float64))
    dense = pattern.averaged().cpu() if isinstance(pattern, Attention) else pattern
    return dense.reshape(n, n)  # pyright: ignore[reportAttributeAccessIssue]


def of_attention(attention: AttentionKind) -> str:
    """What a long name says of attention weights that are not the model's."""
    return f", {ATTENTION[attention]}" if ATTENTION[attention] else ""
