"""What the report says of a prompt: what the model says, the way of the right answer, and what helps.

Sentences state strength by size. That an answer is there at a layer is said only above its controls, and that an
attention or MLP writes for or against it only beyond what random signs give.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from squashlens.measure.answers.verdict_evidence import (
    ANSWERED,
    LOST,
    PREFERRED,
    REACHES,
    UNDECIDED,
)
from squashlens.records.sentences import bare, escape, number, percent, quoted

THERE = 0.1  # least probability of an answer that is said to be there at a layer
TIMES = 2  # its probability is more than this many times that of its controls
PARTS = {"attention": "attention", "mlp": "the MLP"}
WORDS = {
    ANSWERED: "Answered: greedy decoding writes each prompt's own right answer.",
    PREFERRED: "Preferred, not answered: of the two answers each prompt prefers its own, and greedy decoding does not "
    "write both.",
    REACHES: "The change reaches the last token and is not used: not both prompts prefer their own answer.",
    LOST: "Lost before the last token: nothing tells the two prompts apart there.",
    UNDECIDED: "Undecided.",
}


def _quoted(text: str) -> str:
    """A prompt or an answer as text, without the space before it."""
    return f"“{escape(bare(text))}”"


@dataclass(frozen=True)
class Evidence:
    """What was measured of a prompt: `top`, the likeliest next tokens, and `way`, the result of `answer_by_layer` for
    this prompt alone.

    `is_known` says whether the right answer was given; else the likeliest token stands for it. `goes_on` says that the
    model writes the right answer and then a letter or digit, which makes it another one.
    """

    top: xr.DataArray
    way: xr.Dataset
    is_known: bool = True
    goes_on: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether the model writes another answer than the right one."""
        return not self.way["answered"].values.item()

    @property
    def state(self) -> str:
        """One word for whether the model is right."""
        if not self.is_known or self.goes_on:
            return "unknown"
        return "wrong" if self.is_wrong else "right"

    @property
    def right(self) -> str:
        return self._in_quotes("answer")

    @property
    def rival(self) -> str:
        return self._in_quotes("rival")

    def _in_quotes(self, name: str) -> str:
        """An answer in quotation marks, with its spaces visible if the two differ in nothing else."""
        is_alike = bare(self.way["answer"].item()) == bare(self.way["rival"].item())
        text = self.way[name].item()
        return quoted(text) if is_alike else _quoted(text)

    def probability(self, scored: str = "right answer") -> np.ndarray:
        """The probability of the right answer, or of a control, at each layer."""
        return self.way["probability"].sel(scored=scored).values[0]

    @property
    def controls(self) -> np.ndarray:
        """The largest probability of a control at each layer; 0 without controls."""
        # Along `scored`, the right answer is first. (control, layer) of the only prompt:
        of_controls = self.way["probability"].isel(scored=slice(1, None)).values[:, 0]
        return np.nan_to_num(of_controls).max(axis=0, initial=0.0)

    @property
    def leads(self) -> np.ndarray:
        """Whether the right answer leads its rival and all choices at each layer."""
        leads_choices = self.way["likeliest"].sel(scored="right answer").values[0] == 1
        of_rival = self.way["rival_probability"].values[0]
        return leads_choices & (self.probability() > of_rival)

    @property
    def is_there(self) -> np.ndarray:
        """Whether it leads at each layer, with a probability that says something, and the likeliest token begins it."""
        probability = self.probability()
        is_above = probability > TIMES * self.controls
        is_likeliest = self.way["likeliest_of_all"].values[0] == 1
        return self.leads & (probability >= THERE) & is_above & is_likeliest


def said(evidence: Evidence) -> str:
    """What the model says, and whether it is right, with probabilities at the end of the model."""
    at_end = percent(evidence.probability()[-1])
    says = f"The model says {evidence.right} ({at_end})"
    if evidence.is_wrong:
        of_rival = percent(evidence.way["rival_probability"].values[0, -1])
        says = f"The model says {evidence.rival} ({of_rival})"
    if not evidence.is_known:
        return f"{says}. No right answer was given."
    if evidence.goes_on:
        return f"{says} and goes on: this may be another answer."
    if not evidence.is_wrong:
        return f"{says}, which is right."
    return f"{says}. Right is {evidence.right} ({at_end})."


def way(evidence: Evidence) -> str:
    """The way of the answer in a sentence: from where to where it leads, and what writes against it."""
    probability = evidence.probability()
    last = len(probability) - 1
    is_there = evidence.is_there
    right = evidence.right
    if not evidence.is_wrong:
        start = _start_of_run(is_there, last)
        where = f"from layer {start} on" if start < last else "at the end alone"
        of_rival = percent(evidence.way["rival_probability"].values[0, -1])
        return f"{right} is ahead {where}; next is {evidence.rival} with {of_rival}."
    rival = evidence.rival
    if not is_there[:-1].any():
        peak = int(probability.argmax())
        most = percent(probability[peak])
        return f"{right} stands out at no layer (at most {most}, at layer {peak}), and {rival} wins at the end."
    # The run of layers around the one where the answer is likeliest. It ends before the last layer, where another wins.
    peak = int(np.where(is_there[:-1], probability[:-1], 0.0).argmax())
    start = _start_of_run(is_there, peak)
    stop = peak + int(np.argmin(is_there[peak:])) - 1
    where = f"at layer {peak}"
    most = percent(probability[peak])
    if start < stop:
        where = f"from layer {start} to {stop}"
        most += f" at layer {peak}"
    sentence = f"{right} is ahead {where} ({most}), and {rival} wins at the end."
    against = _writes_most_against(evidence, peak)
    if against:
        sentence += f" Beyond chance, {against} writes most against it."
    return sentence


def _start_of_run(is_there: np.ndarray, layer: int) -> int:
    """The first of the layers directly before a layer at all of which an answer is there; the layer itself if none."""
    absent = np.flatnonzero(~is_there[:layer])
    return int(absent[-1]) + 1 if len(absent) else 0


def _writes_most_against(evidence: Evidence, layer: int) -> str:
    """The attention or MLP from a layer on that writes most against the right answer, such as "the MLP of block 3";
    empty if none does so beyond chance."""
    later_blocks = evidence.way.isel(prompt=0).sel(block=slice(layer, None))
    written = later_blocks["written"]
    beyond_chance = written.where(written < -later_blocks["written_by_chance"])
    if not beyond_chance.notnull().any():
        return ""
    strongest = int(beyond_chance.fillna(0.0).values.argmin())
    block, part = _named(beyond_chance, strongest)
    return f"{part} of block {block}"


def _named(values: xr.DataArray, place: int) -> tuple[int, str]:
    """The block, and the attention or MLP in words, of a place among the flattened values over (block, sublayer)."""
    block, sublayer = np.unravel_index(place, values.shape)
    name = str(values["sublayer"].values[sublayer])
    return int(values["block"].values[block]), PARTS[name]


@dataclass(frozen=True)
class Changed:
    """A change that was tried on a prompt: whether it helps, in a sentence."""

    helps: bool
    sentence: str


def helps(name: str, found: xr.Dataset) -> Changed:
    """Whether the model answers under a change, and how likely the right answer is then.

    `name` begins the sentence, such as "With adaptive temperature"; `found` is the `answer_by_layer` under the change.
    """
    evidence = Evidence(xr.DataArray(), found)
    at_end = percent(evidence.probability()[-1])
    if not evidence.is_wrong:
        return Changed(True, f"{name} the model says {evidence.right} ({at_end}).")
    of_rival = percent(found["rival_probability"].values[0, -1])
    return Changed(
        False,
        f"{name} it says {evidence.rival} ({of_rival}; {evidence.right} {at_end}).",
    )


def left_out(effect: xr.Dataset, right: str, rival: str) -> Changed:
    """Without which attention or MLP at the last token the right answer is ahead, beside random changes as large.

    `effect` is the result of `sublayer_effects` for the prompt alone; `right` and `rival` are the answers in quotes.
    """
    of_prompt = effect.isel(prompt=0)
    lead = of_prompt["lead_without"]  # (block, sublayer)
    noise = float(of_prompt["lead_noise"])
    place = int(lead.values.argmax())
    best = float(lead.values.flat[place])
    n_leading = int((lead > noise).sum())
    random = of_prompt["lead_random"]
    n_random = int((random > noise).sum())
    beside = f"of {random.size} random changes of the same sizes, {n_random} do"
    tried = f"{lead.size} attentions and MLPs"
    if not n_leading:
        return Changed(
            False,
            f"Left out at the last token one at a time, none of {tried} puts {right} ahead of {rival}; {beside}.",
        )
    block, part = _named(lead, place)
    sentence = (
        f"Without {part} of block {block} at the last token {right} is ahead of {rival} by {number(best)} nats. Of "
        f"{tried}, left out one at a time, {n_leading} do this; {beside}."
    )
    is_more = n_leading / lead.size > n_random / random.size
    if not is_more:
        sentence += " That is no more than chance."
    return Changed(is_more, sentence)


def of_the_pair(judged: xr.Dataset, instead: tuple[str, str] | None) -> Sequence[str]:
    """Two sentences: the verdict of `diagnose` on the two prompts, and the other prompt with its answer, `instead`."""
    pair = judged.isel(pair=0)
    prompt, answer = instead or ("", "")
    after = percent(pair["probability_after"].item())
    return [
        f"{WORDS[pair['verdict'].item()]} {pair['reason'].item()}",
        f"The other prompt is {_quoted(prompt)}, and its right answer {_quoted(answer)} has {after} there.",
    ]
