"""The attention that paths are made of, and where they start: the model's own, or one of its nulls."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import AttentionKind
from squashlens.errors import InputError
from squashlens.measure._session import Session
from squashlens.model.anatomy import windows
from squashlens.model.capture import Capture, head_mean, mean_patterns
from squashlens.theory.paths import uniform_attention, visible_attention


def one_hot(session: Session, query: int) -> Float[Tensor, "prompt position"]:
    """The row that stands at the query and nowhere else."""
    row = torch.zeros(len(session.ids), session.positions, dtype=torch.float64)
    row[:, session.query(query)] = 1.0
    return row


def patterns_of(
    session: Session, attention: AttentionKind, blocks: range, capture: Capture | None = None
) -> dict[int, Any]:
    """Head-averaged patterns by block: the model's (from `capture` if given) or a null's."""
    if attention != "model":
        make = uniform_attention if attention == "uniform" else visible_attention
        native = windows(session.model)
        by_window = {w: make(session.positions, w) for w in set(native)}
        return {b: by_window[native[b]] for b in blocks}
    if capture is None:
        return mean_patterns(session.model, session.ids, blocks)
    capture.require_current(session.model, session.ids.cpu())
    missing = sorted(set(blocks) - set(capture.patterns))
    if missing:
        raise InputError(
            f"The capture holds no patterns of blocks {missing}.", "Capture them with patterns=True, layers=None."
        )
    return {b: head_mean(capture.patterns[b]) for b in blocks}
