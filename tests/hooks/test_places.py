"""Positions by text against the results' own token coordinate."""

from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from tests.conftest import PROMPT


def test_places_are_those_of_the_token_coordinate(tiny: Any) -> None:
    labels = sl.path_bound(tiny, PROMPT)["token"].values
    for text in ("1", "0", "ones", "=", "?"):
        found = sl.hooks.find_positions(tiny, PROMPT, text)
        assert [i for i, label in enumerate(labels) if str(label).strip() == text] == list(found)
    assert sl.hooks.find_positions(tiny, PROMPT, " ones ") == sl.hooks.find_positions(tiny, PROMPT, "ones")
    assert sl.hooks.find_positions(tiny, sl.prompts.tokenize(tiny, PROMPT), str.isdigit) == (
        10,
        11,
        12,
        13,
    )
    with sl.applied(tiny, sl.hooks.mask_tokens(sl.hooks.find_positions(tiny, PROMPT, "0"))):
        bound = sl.path_bound(tiny, PROMPT).values
    assert bound[12] == 0
    assert bound[11] > 0


def test_nothing_found_is_refused(tiny: Any) -> None:
    with pytest.raises(InputError, match="No token of this prompt is ';'.*Its tokens are"):
        sl.hooks.find_positions(tiny, PROMPT, ";")
    with pytest.raises(InputError, match="No token of this prompt is 'one'"):  # a part of "ones"
        sl.hooks.find_positions(tiny, PROMPT, "one")
    with pytest.raises(InputError, match="one for which token= is true"):
        sl.hooks.find_positions(tiny, PROMPT, str.isspace)
    with pytest.raises(InputError, match="one prompt"):
        sl.hooks.find_positions(tiny, torch.stack([sl.prompts.tokenize(tiny, PROMPT)[0]] * 2), "1")
