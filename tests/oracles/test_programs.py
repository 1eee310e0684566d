"""Programs compiled by tracr: who can influence what is written in the program."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import tracr

import squashlens as sl

STORED = np.load(Path(__file__).with_name("programs.npz"))
TEXT = "abacab"  # after BOS, so that its letters are at 1 … 6


@dataclass(frozen=True)
class Program:
    """A compiled program as a bridge, the token id of each symbol, and what each column of the logits means."""

    model: Any
    symbols: dict[str, int]
    outputs: dict[int, Any]

    def ids(self, text: str = TEXT) -> torch.Tensor:
        return torch.tensor(
            [self.symbols["compiler_bos"], *(self.symbols[letter] for letter in text)]
        )

    def answers(self, text: str = TEXT) -> list[Any]:
        """What the program returns at each letter."""
        with torch.no_grad():
            return [
                self.outputs[int(column)]
                for column in self.model(self.ids(text)[None])[0, 1:].argmax(dim=-1)
            ]


def program(name: str) -> Program:
    """A stored program, in float64."""
    described = json.loads(str(STORED[f"{name}/described"]))
    params: dict[str, dict[str, np.ndarray]] = {}
    for key in STORED.files:
        if key.startswith(f"{name}/transformer/") or key.startswith(
            (f"{name}/token_embed", f"{name}/pos_embed")
        ):
            module, part = key.removeprefix(f"{name}/").rsplit("/", 1)
            params.setdefault(module, {})[part] = STORED[key]
    assembled = SimpleNamespace(
        params=params,
        model_config=SimpleNamespace(**described["config"]),
        output_encoder=SimpleNamespace(encoding_map=dict(described["outputs"])),
        residual_labels=described["residual_labels"],
    )
    model = TransformerBridge.boot_native(
        tracr.make_tracr_transformer_bridge_config(assembled), dtype=torch.float64
    )
    weights = tracr.make_tracr_transformer_bridge_state_dict(
        assembled, dtype=torch.float64
    )
    model.load_state_dict(weights, strict=False)
    outputs = {column: value for value, column in described["outputs"]}
    return Program(model.eval(), dict(described["inputs"]), outputs)


def test_the_programs_compute_what_they_say() -> None:
    assert program("previous").answers()[1:] == list(
        TEXT[:-1]
    )  # the first letter has no letter before it
    assert program("first").answers("cab") == ["c"] * 3
    assert program("count").answers() == [
        TEXT[: i + 1].count("a") for i in range(len(TEXT))
    ]


@pytest.mark.parametrize("query", [2, 4, 6])
@pytest.mark.parametrize("name", ["previous", "first"])
def test_influence_is_only_where_the_program_says(name: str, query: int) -> None:
    """The one key of the selector and the query's own stream pass on with norm 1, everything else not.

    tracr's selectors are softmaxes with a finite temperature: BOS keeps a weight of 2·10⁻⁶, other tokens e⁻¹⁰⁰ before
    cancellation.
    """
    read = program(name)
    key = query - 1 if name == "previous" else 1
    norms = sl.jacobian_norms(read.model, read.ids(), query=query).values
    bound = sl.certified_bound(read.model, read.ids(), query=query).values
    others = [place for place in range(query) if place != key]
    for found in (norms, bound):
        np.testing.assert_allclose(found[[key, query]], 1.0, rtol=1e-5)
        assert found[others].max() < 1e-5
        assert (found[query + 1 :] == 0).all()
    letters = [read.symbols[letter] for letter in "abc"]
    swapped = sl.substitution_effect(
        read.model,
        read.ids(),
        candidates=letters,
        positions=range(1, query + 1),
        query=query,
    )
    assert swapped["kl"].values[key] > 0.1
    assert np.nanmax(np.delete(swapped["kl"].values, key)) < 1e-10


def test_a_count_has_no_derivative_and_a_swap_changes_it() -> None:
    """The MLP's steps are flat at whole counts, so every logit is constant around every prompt."""
    read = program("count")
    counted = [1 + i for i, letter in enumerate(TEXT) if letter == "a"]
    query = len(TEXT)
    assert query not in counted
    stream = read.model.blocks[0].hook_in
    leaf: list[torch.Tensor] = []

    def plant(tensor: torch.Tensor, hook: Any) -> torch.Tensor:
        leaf.append(tensor.detach().requires_grad_())
        return leaf[0]

    with read.model.hooks([(stream.name, plant)]):
        logits = read.model(read.ids()[None])[0, query]
    for logit in logits:
        (gradient,) = torch.autograd.grad(logit, leaf[0], retain_graph=True)
        assert (gradient[0, counted] == 0).all()
    # The number before the steps is in the stream too, and it does have a derivative: y is more than the answer.
    assert (sl.jacobian_norms(read.model, read.ids()).values[counted] > 1).all()
    letters = [read.symbols[letter] for letter in "bc"]
    swapped = sl.substitution_effect(
        read.model, read.ids(), candidates=letters, positions=counted
    )
    assert (swapped["kl"].values[counted] > 0.1).all()
    for place in counted:
        other = TEXT[: place - 1] + "b" + TEXT[place:]
        assert read.answers(other)[-1] == read.answers()[-1] - 1
