"""Interventions on families of prompts: what each does to sensitivity, collapse and answers, and what it costs.

A family is a growing sequence whose content is drawn anew for each sample. All interventions are measured on the same
samples, so that each difference to the unchanged model is paired, with exact intervals and tests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Method, positive
from squashlens.bars import bar
from squashlens.engine.anatomy import residual_site
from squashlens.engine.applied import applied
from squashlens.engine.capturing.pairs import Pairs, capture_pairs, prepare_run
from squashlens.engine.running.forward import log_probabilities, require_understood
from squashlens.engine.running.streamed import patterns_written
from squashlens.engine.text.tokens import Prompts, each_of, tokenize
from squashlens.errors import InputError
from squashlens.measure.answers.accuracy import Answer, answered_right
from squashlens.measure.collapse.metric import Metric
from squashlens.measure.remedies.named_interventions import form_under, hooks_of, stated
from squashlens.measure.session import Session, model_name, streams_at
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.records.joining import joined, restated
from squashlens.records.results import Variable, attributes
from squashlens.sequences import GrowingSequence
from squashlens.tasks import find
from squashlens.theory.distances import divergence
from squashlens.theory.statistics.ranks import least_p, median_interval, ratio, share_interval, sign_test
from squashlens.theory.statistics.trends import holm, with_ends
from squashlens.zoo import bundled

PLACES = ("first", "middle", "last")  # of the content tokens 1, ⌈n/2⌉ and n
# What the bundled model was trained on beside counting and copying; items of each of so many prompts.
TAUGHT, TEXTS, ITEMS = ("taught_last_random", "taught_first_random"), 16, 12
PER_SAMPLE, PER_PLACE = ("family", "length", "sample"), ("family", "length", "place", "sample")
Rows = list[Float[Tensor, "position d"]]


@dataclass(frozen=True)
class Sampling:
    """How many sequences are drawn, and what is measured on them: keywords of `compare`, which describes them."""

    n_samples: int
    method: Method
    noise_lengths: int
    seed: int


@dataclass(frozen=True)
class Bench:
    """What interventions are measured on, and how: samples of each family at some lengths, and text for the cost.

    `samples` are the same for every intervention, `texts` token ids of any lengths.
    """

    model: Bridge
    samples: Mapping[str, list[GrowingSequence]]
    answers: Mapping[str, Answer]
    texts: list[Tensor]
    lengths: list[int]
    metric: Metric
    sampling: Sampling

    @classmethod
    def of(
        cls, model: Bridge, families: Mapping[str, GrowingSequence], answer: Any, prompts: Prompts | None,
        lengths: Iterable[int] | None, metric: Metric, sampling: Sampling,
    ) -> "Bench":  # fmt: skip
        """Check the families, their answers and the text, and draw the samples."""
        positive(sampling.n_samples, "n_samples", "a number of sequences")
        if not families:
            raise InputError("sequence= has no families.", 'Give sequences by name, as {"counting": sequence}.')
        for name, family in families.items():
            if len(set(family.alphabet)) < 2:
                raise InputError(
                    f"The alphabet of the family {name!r} has one token, so that all its samples are equal.",
                    "Give alphabet= at least two tokens, from which samples are drawn.",
                )
        shortest = min(families.values(), key=len)
        chosen = prepare_run(model, shortest, [len(shortest)] if lengths is None else lengths, "separate", None).lengths
        answers = dict(answer) if isinstance(answer, Mapping) else dict.fromkeys(families, answer)
        unknown = [name for name in answers if name not in families]
        if unknown:
            raise InputError(f"answer= has no family {unknown[0]!r}.", f"The families are {', '.join(families)}.")
        drawn = {
            name: [family.unrelated(Random(f"asked {sampling.seed} {number}")) for number in range(sampling.n_samples)]
            for name, family in families.items()
        }
        given = {name: each for name, each in answers.items() if each is not None}
        return cls(model, drawn, given, _texts(model, prompts), list(chosen), metric, sampling)

    def compared(self, interventions: Mapping[str, tuple[Any, ...]]) -> xr.Dataset:
        """All interventions, the first of which is the unchanged model, and their differences to it."""
        if self.texts:
            require_understood(self.model)
        plain: Rows = []
        found = {}
        # A pass that writes patterns and one that does not differ by rounding, and a hook may need them.
        with patterns_written("interventions are compared bit by bit"):
            for name, parts in bar(interventions.items(), desc="interventions"):
                with applied(self.model, *hooks_of(parts)):
                    found[name] = self._measured(parts, plain)
        return restated(with_differences(joined(found, "change")), {})

    def _measured(self, parts: tuple[Any, ...], plain: Rows) -> xr.Dataset:
        """All quantities of one intervention, whose hooks are on the model.

        `plain` has y of the unchanged model for each text, or gets it if empty.
        """
        forms = {name: [form_under(parts, one) for one in drawn] for name, drawn in self.samples.items()}
        first = next(iter(forms.values()))[0]
        ids = torch.tensor([first.plain(self.lengths[-1]).ids(first.trunk)])
        given: dict[str, Any] = {"families": {name: drawn[0].name for name, drawn in forms.items()}}
        given |= {"forms": {name: stated(drawn[0], drawn=True) for name, drawn in self.samples.items()}}
        given |= {"texts": [text.tolist() for text in self.texts]} if self.texts else {}
        session = Session.without_prompt(
            self.model, ids, "compare", **self.metric.said, **vars(self.sampling), lengths=self.lengths,
        ).knowing(**given)  # fmt: skip
        gaps, floors = zip(*(self._collapse(drawn) for drawn in forms.values()), strict=True)
        text = self.metric.distance("distance of v and v* at the last layer")
        variables: dict[str, Variable] = {"distance": (PER_SAMPLE, torch.stack(gaps), text, self.metric.units)}
        if self.sampling.noise_lengths:
            noise = self.metric.derived("how far rounding can move D: the largest over the replayed lengths")
            variables["noise_floor"] = (("family", "sample"), torch.stack(floors), noise, self.metric.units)
        if self.sampling.method != "none":
            norms = torch.stack([self._jacobian(drawn) for drawn in forms.values()])
            what = f"norm of the Jacobian at a content token, {self.sampling.method}"
            variables["jacobian_norm"] = (PER_PLACE, norms, what, "1")
        if self.answers:
            right = np.stack([self._right(name, drawn) for name, drawn in forms.items()])
            variables["right"] = (PER_SAMPLE, right, "whether the answer is right, greedy decoding", "1")
        if self.texts:
            rows = [self._before_logits(text) for text in self.texts]
            plain += rows if not plain else []
            kl = torch.stack([self._divergence(p, q) for p, q in zip(plain, rows, strict=True)])
            if parts and not hooks_of(parts):  # another form of the sequence leaves other text as it is
                kl = torch.full_like(kl, torch.nan)
            what = "KL divergence of the next token, unchanged model from changed, mean over positions"
            variables["kl"] = (("text",), kl, what, "nats")
        coords = {"family": list(forms), "length": self.lengths}
        if self.sampling.method != "none":
            coords["place"] = list(PLACES)
        return session.dataset("interventions on families of prompts", coords, variables)

    def _collapse(self, drawn: list[GrowingSequence]) -> tuple[Tensor, Tensor]:
        """D at the last layer, (length, sample), and its noise floor, (sample)."""
        gaps, floors = [], []
        for form in drawn:  # hooks decide whether passes can be shared, and rounding differs, so all are separate
            wanted = Pairs(lengths=self.lengths, noise_lengths=self.sampling.noise_lengths, passes="separate")
            pairs = capture_pairs(self.model, form, wanted, patterns=False)
            gaps.append(self.metric.between(pairs)[-2])  # the last is y
            floors.append(self.metric.floor(pairs.v, pairs.star, pairs.replay)[-2])
        return torch.stack(gaps, dim=-1).cpu(), torch.stack(floors).cpu()

    def _jacobian(self, drawn: list[GrowingSequence]) -> Tensor:
        """Norms of the Jacobian at the content tokens of `PLACES`, (length, place, sample)."""
        found = []
        for n in self.lengths:
            ids = torch.tensor([form.plain(n).ids(form.trunk) for form in drawn])
            norms = jacobian_norms(self.model, ids, method=self.sampling.method, seed=self.sampling.seed)
            rows = torch.from_numpy(np.atleast_2d(norms.values))
            at = [[form.position(number) for number in (1, (n + 1) // 2, n)] for form in drawn]
            found.append(rows.gather(1, torch.tensor(at)).T)
        return torch.stack(found)

    def _right(self, name: str, drawn: list[GrowingSequence]) -> np.ndarray:
        """Whether each sample is answered correctly, (length, sample); NaN for a family without answers."""
        if name not in self.answers:
            return np.full((len(self.lengths), len(drawn)), np.nan)
        right = answered_right(self.model, drawn, self.answers[name], self.lengths)
        return right.T.astype(float)

    def _before_logits(self, ids: Tensor) -> Float[Tensor, "position d"]:
        """y at every position of a text; log-probabilities of a large vocabulary would take megabytes a position."""
        site = residual_site("y", self.model)
        with torch.inference_mode(False):
            return streams_at(self.model, ids[None], [site])[site][0]

    def _divergence(self, plain: Float[Tensor, "position d"], changed: Float[Tensor, "position d"]) -> Tensor:
        """KL divergence of the next token, mean over positions."""
        both = (log_probabilities(self.model, y) for y in (plain, changed))
        return torch.cat([divergence(p, q).cpu() for p, q in zip(*both, strict=True)]).mean()


def _texts(model: Bridge, prompts: Prompts | None) -> list[Tensor]:
    """Token ids of the texts on which the cost is measured; for the bundled model there is a default, else none."""
    if prompts is None and model_name(model) in bundled():
        asked = [find(TAUGHT[number % 2]).ask(ITEMS, seed=number) for number in range(TEXTS)]
        prompts = [f"{question.prompt} {question.truth}" for question in asked]
    return [] if prompts is None else [tokenize(model, one)[0] for one in each_of(prompts)]


SIZES = {"distance": "D", "jacobian_norm": "norm of the Jacobian"}


def with_differences(found: xr.Dataset) -> xr.Dataset:
    """The result with medians, ratios to the first change, intervals over samples, and corrected p-values.

    All tests of the result are corrected together. There is no test of the first change, which is the model itself,
    and none of the divergence, which is 0 only if nothing changed.
    """
    made: dict[str, Variable] = {}
    differences: dict[str, Tensor] = {}
    for name, text in SIZES.items():
        if name in found:
            dims, values, units = _values(found, name)
            quotient, of = ratio(values, values[:1]), "divided by that of the unchanged model"
            made |= _summary(name, dims, median_interval(values), f"{text}, median over samples", units, "_median")
            made |= _summary(f"{name}_ratio", dims, median_interval(quotient), f"{text} {of}, median over samples")
            differences[name] = values - values[:1]
    if "right" in found:
        dims, values, _ = _values(found, "right")
        made |= _summary("accuracy", dims, share_interval(values), "share of right answers")
        differences["accuracy"] = values - values[:1]
        text = "share of right answers minus that of the unchanged model"
        made["accuracy_difference"] = (dims[:-1], differences["accuracy"].mean(dim=-1), text, "1")
    if "kl" in found:
        dims, values, units = _values(found, "kl")
        text = "KL divergence of the next token, median over texts"
        made |= _summary("kl", dims, median_interval(values), text, units, "_median")
    tests = {name: sign_test(each) for name, each in differences.items()}
    for p in tests.values():
        p[0] = torch.nan  # the unchanged model is not tested against itself
    corrected = _correct(tests)
    for name, p in tests.items():
        dims = _values(found, "right" if name == "accuracy" else name)[0][:-1]
        text = "p-value of the exact sign test of the paired differences to the unchanged model"
        made[f"{name}_p"] = (dims, p, text, "1")
        made[f"{name}_p_holm"] = (dims, corrected[name], f"{text}, corrected by Holm's method", "1")
    several = sum(int((~p.isnan()).sum()) for p in tests.values())
    least = torch.tensor(least_p(found.sizes["sample"])).double()
    made["least_p"] = ((), least, "smallest p-value that this number of samples can give", "1")
    made["least_p_holm"] = ((), (several * least).clamp(max=1), "the same, corrected for all tests", "1")
    new = {
        name: xr.Variable(dims, values.numpy(), attributes(text, units))
        for name, (dims, values, text, units) in made.items()
    }
    return found.assign(new)


def remedies_table(found: xr.Dataset) -> pd.DataFrame:
    """The summary of a result for families: a row for each change, family and length."""
    columns = {name: found[name] for name in ("distance_ratio", "distance_ratio_low", "distance_ratio_high")}
    if "jacobian_norm_ratio" in found:
        norms = found["jacobian_norm_ratio"]
        columns |= {f"jacobian_{place}": norms.sel(place=place, drop=True) for place in ("first", "last")}
    if "accuracy" in found:
        columns["accuracy"] = found["accuracy"]
    if "kl_median" in found:
        columns["kl"] = found["kl_median"].broadcast_like(found["distance_ratio"])
    tests = [found[name] for name in found.data_vars if str(name).endswith("_p_holm") and str(name) != "least_p_holm"]
    least = [one.min("place") if "place" in one.dims else one for one in tests]
    columns["p_holm"] = xr.concat(least, dim="test").min("test")
    plain = xr.Dataset({name: one.reset_coords(drop=True) for name, one in columns.items()})
    return plain.to_dataframe(dim_order=["change", "family", "length"]).reindex(columns=list(columns))


def _values(found: xr.Dataset, name: str) -> tuple[tuple[Any, ...], Tensor, str]:
    """Dimensions and values of a variable, in float64, and its units."""
    return found[name].dims, torch.from_numpy(np.asarray(found[name].values, dtype=float)), found[name].attrs["units"]


def _summary(
    name: str, dims: tuple[Any, ...], ends: tuple[Tensor, Tensor, Tensor], text: str, units: str = "1",
    middle: str = "",
) -> dict[str, Variable]:  # fmt: skip
    """The middle of an interval over the last dimension as a variable, and its ends as two more."""
    found = with_ends(name, dims[:-1], ends, text, units)
    return {name + middle: found.pop(name)} | found


def _correct(tests: dict[str, Tensor]) -> dict[str, Tensor]:
    """The p-values of all tests together, corrected by Holm's method."""
    flat = torch.cat([p.flatten() for p in tests.values()])
    parts = torch.tensor(holm(flat.tolist())).double().split([p.numel() for p in tests.values()])
    return {name: part.reshape(p.shape) for (name, p), part in zip(tests.items(), parts, strict=True)}
