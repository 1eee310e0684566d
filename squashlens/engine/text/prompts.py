"""Read prompts in any allowed form (text, token ids, or several of either) and check them without a model."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from squashlens._typing import short_repr
from squashlens.errors import InputError

Id = int | np.integer
Prompts = str | Sequence[str | Id] | Sequence[Sequence[Id]] | Sequence[Tensor | np.ndarray] | np.ndarray | Tensor

ALLOWED = (
    "Give text, a list of texts, token ids as a list, nested list, NumPy array or tensor of integers, or several such "
    "lists."
)
WIDEST = 2**63  # larger ids do not fit into a tensor
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def each_of(prompts: Any) -> list[str] | list[list[int]]:
    """The prompts as a list, all of them texts or all of them lists of ids.

    A single prompt gives a list with one item.

    Raises:
        InputError: anything else, or a mixture of texts and ids.

    >>> each_of("110"), each_of([2, 5]), each_of([[2, 5], (2, 5, 7)]), each_of(np.array([[2], [5]]))
    (['110'], [[2, 5]], [[2, 5], [2, 5, 7]], [[2], [5]])
    """
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Tensor):
        return _rows(prompts)
    if hasattr(prompts, "__array__"):  # NumPy, pandas, xarray
        array = np.asanyarray(prompts)
        texts = array.dtype.kind in "UT" or (array.dtype == object and all(isinstance(one, str) for one in array.flat))
        if not texts:
            return _rows(array)
        prompts = array.tolist()
    if not isinstance(prompts, list | tuple):
        raise InputError(
            f"The prompts are of type {type(prompts).__name__}, which has no order of tokens.", remedy(prompts)
        )
    if all(isinstance(one, str) for one in prompts):
        return list(prompts)
    if not any(isinstance(one, str) or _holds_ids(one) for one in prompts):
        return [_ids(prompts)]
    if all(_holds_ids(one) for one in prompts):
        return [_row(one) for one in prompts]
    kinds = sorted({"a list" if _holds_ids(one) else type(one).__name__ for one in prompts})
    raise InputError(f"The prompts are a mixture of {' and '.join(kinds)}.", ALLOWED)


def remedy(prompts: object) -> str:
    """What to give instead of an object that is not a prompt."""
    if isinstance(prompts, Mapping) and "input_ids" in prompts:  # what tokenizers of transformers return
        return 'Give its token ids: `["input_ids"]`.'
    return ALLOWED


def _holds_ids(one: object) -> bool:
    """Whether this can be the ids of one prompt: a sequence, not a number in a zero-dimensional tensor."""
    return isinstance(one, list | tuple) or (isinstance(one, np.ndarray | Tensor) and one.ndim > 0)


def _rows(array: np.ndarray | Tensor) -> list[list[int]]:
    """The rows of an array of ids of shape (position) or (prompt, position)."""
    if array.dtype not in INTEGERS if isinstance(array, Tensor) else array.dtype.kind not in "iu":
        raise InputError(f"Token ids must be integers, got {array.dtype}.", "Pass text, or convert the ids.")
    if array.ndim not in (1, 2):
        raise InputError(
            f"Token ids must have shape (position) or (prompt, position), got {array.ndim} axes.", "Reshape them."
        )
    if isinstance(array, np.ma.MaskedArray):
        raise InputError("The token ids are a masked array.", "Pass the unmasked ids: `ids.compressed()`.")
    if isinstance(array, np.ndarray) and array.size and array.max() >= WIDEST:
        raise InputError(f"{array.max()} is not a token id.", ALLOWED)
    return array.tolist() if array.ndim == 2 else [array.tolist()]


def _row(one: Any) -> list[int]:
    """The ids of one of several prompts."""
    if isinstance(one, np.ndarray | Tensor):
        rows = _rows(one)
        if len(rows) != 1:
            raise InputError(
                f"One of the prompts has {len(rows)} rows of ids.", "Give the ids of each prompt as one row."
            )
        return rows[0]
    return _ids(one)


def _ids(given: Sequence[Any]) -> list[int]:
    for one in given:
        number = one.item() if isinstance(one, np.generic) or (isinstance(one, Tensor) and one.ndim == 0) else one
        if isinstance(number, bool) or not isinstance(number, Integral):
            kind = "a list inside a list" if _holds_ids(one) else short_repr(one)
            raise InputError(f"Token ids must be integers, got {kind} ({type(one).__name__}).", ALLOWED)
        if not -WIDEST <= int(number) < WIDEST:
            raise InputError(f"{number} is not a token id.", "Tokenize with this model's tokenizer.")
    return [int(one) for one in given]
