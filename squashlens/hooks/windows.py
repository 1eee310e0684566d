"""The counterfactual of a model's own sliding windows: every block sees the whole prompt."""

from collections.abc import Iterator
from contextlib import contextmanager

from squashlens._typing import Bridge
from squashlens.checks.arguments import validated
from squashlens.engine.anatomy import text_config, windows
from squashlens.engine.locks import locked, require_bridge
from squashlens.errors import InputError

EVERYTHING = 2**30  # more tokens than any prompt has


@validated
@contextmanager
def lifted_windows(model: Bridge) -> Iterator[Bridge]:
    """Let every block of a model attend to the whole prompt within a `with` block, and restore its windows after it.

    Positions are encoded as before, also at distances that the block has not seen in training. The model is another one
    in the meantime: it is verified anew, and results have another fingerprint.

    Args:
        model: a model with blocks that have a sliding window.

    Raises:
        InputError: the model has no sliding windows.

    >>> import squashlens as sl
    >>> with sl.hooks.lifted_windows(sl.load("tiny-gemma")):
    ...     pass
    Traceback (most recent call last):
    squashlens.errors.InputError: This model has no sliding windows. Leave lifted_windows out.
    """
    require_bridge(model)
    config = text_config(model)
    own = getattr(config, "sliding_window", None)
    if own is None or not any(windows(model)):
        raise InputError("This model has no sliding windows.", "Leave lifted_windows out.")
    holders = [config, *(m for m in model.original_model.modules() if vars(m).get("sliding_window") == own)]
    with locked(model):
        try:
            for holder in holders:
                holder.sliding_window = EVERYTHING
            yield model
        finally:
            for holder in holders:
                holder.sliding_window = own
