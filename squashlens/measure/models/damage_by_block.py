"""Where another model loses the lead of right answers: a sum over its blocks that adds up to the whole loss."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Float

from squashlens._typing import Bridge, ChoicesOfPrompts, Clusters, PromptsOrItems
from squashlens.measure.answers.choices import mean_of
from squashlens.measure.models.questions import (
    LEAD,
    TwoModels,
    leads_at,
    recorded_batches,
    two_models,
)
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of
from squashlens.run.exchange import Pair, require_exchangeable

StreamsOf = Literal["reference", "other", "both"]
LOST = "lead that the other model loses in this part"
GAIN = "lead that keeping this block of the reference alone gives back"
ALONE = "lead in the other model with this block of the reference"
TABLE = {
    "damage": ("streams prompt part", LOST, "nats"),
    "lead_alone": ("prompt block", ALONE, "nats"),
    "lead": ("model prompt", LEAD, "nats"),
}


@measurement("damages")
def damage_by_block(
    reference: Bridge,
    other: Bridge,
    prompts: PromptsOrItems,
    answers: Sequence[str] | None = None,
    *,
    choices: ChoicesOfPrompts = None,
    clusters: Clusters = None,
    streams: StreamsOf = "reference",
) -> xr.Dataset:
    """How much of the lead of right answers each block of another model loses, and what keeping one block gives back.

    Both models have one architecture and other numbers. Let ``c_ℓ`` be the lead of the right answer if the
    reference's residual stream v⁽ℓ⁾ enters block ℓ of the other model, for ℓ = 0 … L (for L its final norm and head);
    ``c_{−1}`` the lead in the other model itself, and ``c_{L+1}`` that in the reference. The damage of the embedding is
    ``c_0 − c_{−1}``, that of block ℓ ``c_{ℓ+1} − c_ℓ``, that of norm and head ``c_{L+1} − c_L``. Together they are
    exactly the lead that is lost. With ``streams="other"`` the other model's streams enter the reference, which gives a
    second sum.

    Damages depend on the order of the blocks: what happens above a block is that of the other model (or of the
    reference). What a single block costs is another question; so each block is also exchanged alone for the
    reference's. `blocks_to_keep` selects several, and tests them on other prompts.

    Args:
        reference, other, prompts, answers, choices, clusters: as in `compare_models`, for models of one class, number
            of blocks and width, without hooks.
        streams: whose streams enter the other's blocks: ``"reference"``, the default, ``"other"`` or ``"both"``.

    Returns:
        Dataset. Over (streams, prompt, part), with `part` ``"embedding"``, ``"block 0"`` … and ``"norm and head"``:
        `damage`, in nats. Over (prompt, block): `lead_alone`, the lead in the other model with this block of the
        reference. Over (model, prompt): `lead`. Over (streams, part) and (block): their means over prompts,
        `mean_damage` and `mean_gain` (of `lead_alone` minus the other's lead), with the ends `…_low` and `…_high` of a
        95 % interval over clusters.

    Raises:
        InputError: the cases of `compare_models`; other architectures; models with hooks, or whose blocks depend on
            more than the stream that enters them.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 01{digit} =" for digit in "0123"]
    >>> found = sl.damage_by_block(model, sl.quantize_weights(model, "Q4_0", blocks=(2,)), prompts, [*"0123"])
    >>> lost = found["lead"].sel(model="reference") - found["lead"].sel(model="other")
    >>> bool(abs(found["damage"].sum("part") - lost).max() < 1e-4)
    True
    """
    given = (prompts, answers, choices, clusters, None)
    with two_models(reference, other, this_call(), *given) as two:
        require_exchangeable(two.reference, two.other)
        return _damages(two, streams)


def _damages(two: TwoModels, streams: StreamsOf) -> xr.Dataset:
    """Damages of all parts, leads with each block of the reference alone, and both models' own leads, by prompt.

    `streams` says whose streams enter the other's blocks, as in `damage_by_block`.
    """
    n_blocks = two.reference.n_blocks
    n_prompts = len(two.asked.prompts)
    feeders = ["reference", "other"] if streams == "both" else [streams]
    # Beside the blocks, the embedding, and norm and head.
    damage = np.zeros((len(feeders), n_prompts, n_blocks + 2))
    alone = np.zeros((n_prompts, n_blocks))
    leads = np.zeros((2, n_prompts))
    for places, pair in recorded_batches(two, range(n_prompts)):
        y_of_reference = pair.reference.y_of(pair.reference.streams[-1])
        y_of_other = pair.other.y_of(pair.other.streams[-1])
        lead = leads_at(two, two.reference, places, y_of_reference)
        lead_of_other = leads_at(two, two.other, places, y_of_other)
        leads[:, places] = lead, lead_of_other
        for number, feeder in enumerate(feeders):
            chain = _chain(two, places, pair, feeder)
            # From the other's lead to the reference's, each step is what is lost in a part. Where the other's streams
            # enter the reference, the order is reversed, and a loss is a step down.
            lost = _steps(lead_of_other, chain, lead)
            if feeder == "other":
                lost = -_steps(lead, chain, lead_of_other)
            damage[number, places] = lost.T
        for block in range(n_blocks):
            y = pair.y_keeping({block: "block"})
            alone[places, block] = leads_at(two, two.other, places, y)
    return _result(two, feeders, damage, alone, leads)


def _steps(
    first: Float[np.ndarray, " row"],
    chain: Float[np.ndarray, "layer row"],
    last: Float[np.ndarray, " row"],
) -> Float[np.ndarray, "part row"]:
    """The differences of neighbours in the sequence `first`, `chain`, `last`: a step for each part of the model."""
    return np.diff(chain, axis=0, prepend=first[None], append=last[None])


def _chain(
    two: TwoModels, places: list[int], pair: Pair, feeder: str
) -> Float[np.ndarray, "layer row"]:
    """c_0 … c_L: at each layer, the leads if the stream of one model, the `feeder`, enters the block of the other one.

    `pair` was recorded on the prompts with the numbers `places`.
    """
    feeding, fed = pair.reference, pair.other
    run = two.other
    if feeder == "other":
        feeding, fed = pair.other, pair.reference
        run = two.reference
    leads: list[Float[np.ndarray, " row"]] = []
    for layer, stream in enumerate(feeding.streams):
        leads.append(leads_at(two, run, places, fed.y_from(layer, stream)))
    return np.stack(leads)


def _result(
    two: TwoModels,
    feeders: list[str],
    damage: Float[np.ndarray, "streams prompt part"],
    alone: Float[np.ndarray, "prompt block"],
    leads: Float[np.ndarray, "model prompt"],
) -> xr.Dataset:
    """The result of all prompts, with means over them; `alone` has the leads with one block of the reference."""
    n_blocks = two.reference.n_blocks
    clusters = two.asked.clusters
    variables = variables_of(
        TABLE, {"damage": damage, "lead_alone": alone, "lead": leads}
    )
    means = {
        "mean_damage": (("streams", "part"), damage.swapaxes(1, 2), LOST),
        # Less the other model's own lead.
        "mean_gain": (("block",), (alone - leads[1][:, None]).T, GAIN),
    }
    for name, (dims, values, text) in means.items():
        variables |= mean_of(
            name, dims, values, text, "nats", clusters=clusters, share=False
        )
    blocks = [f"block {block}" for block in range(n_blocks)]
    coords: dict[str, Any] = {
        "streams": feeders,
        "part": ["embedding", *blocks, "norm and head"],
        "block": np.arange(n_blocks),
        "model": list(two.runs),
        "prompt": np.arange(len(alone)),
        "answer": ("prompt", two.asked.answers),
        "cluster": ("prompt", clusters),
    }
    return two.reference.dataset("damages by block", coords, variables)
