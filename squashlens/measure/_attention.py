"""The attention that paths are made of, and where they start: the model's own, or one of its nulls."""

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import AttentionKind
from squashlens.errors import InputError
from squashlens.measure._session import Session
from squashlens.model.anatomy import windows
from squashlens.model.attention import Attention
from squashlens.model.forward import attention_of, head_mean
from squashlens.model.memory import require_room
from squashlens.theory.paths import Pattern, Uniform, Visible, uniform_attention, visible_attention


def one_hot(session: Session, query: int) -> Float[Tensor, "prompt position"]:
    """The row that stands at the query and nowhere else."""
    row = torch.zeros(len(session.ids), session.positions, dtype=torch.float64)
    row[:, session.query(query)] = 1.0
    return row


def patterns_of(session: Session, attention: AttentionKind, blocks: range) -> dict[int, Pattern]:
    """Head-averaged attention by block: a null's, or the model's, from the capture if that has patterns."""
    if attention != "model":
        make = Uniform if attention == "uniform" else Visible
        native = windows(session.model)
        return {b: make(native[b]) for b in blocks}
    held = {} if session.capture is None else session.capture.patterns
    if not held:
        return dict(attention_of(session.model, session.ids, blocks))
    missing = sorted(set(blocks) - set(held))
    if missing:
        raise InputError(
            f"The capture holds no patterns of blocks {missing}.", "Capture them with layers=None, or none at all."
        )
    return {b: head_mean(held[b]) for b in blocks}


def written_out(session: Session, pattern: Pattern) -> Float[Tensor, "query key"]:
    """The pattern of one prompt as n × n numbers, for what needs to see them all."""
    n = session.positions
    require_room(n * n * 8, torch.device("cpu"), "A pattern written out", "Use a shorter prompt.")
    if isinstance(pattern, Uniform | Visible):
        return (uniform_attention if isinstance(pattern, Uniform) else visible_attention)(n, pattern.window)
    dense = pattern.averaged().cpu() if isinstance(pattern, Attention) else pattern
    return dense.reshape(n, n)  # pyright: ignore[reportAttributeAccessIssue]
