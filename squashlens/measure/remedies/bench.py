"""Interventions on families of prompts: what each does to sensitivity, collapse and answers, and what it costs.

A family is a growing sequence whose content is drawn anew for each sample. All interventions are measured on the same
samples, so that each difference to the unchanged model is paired.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Distance, Method, Scale, positive
from squashlens.bars import bar
from squashlens.engine.anatomy import residual_site
from squashlens.engine.capturing.pairs import capture_pairs
from squashlens.engine.proving.effective import applied
from squashlens.engine.running.forward import forward, log_probabilities, require_understood
from squashlens.engine.running.streamed import patterns_written
from squashlens.engine.text.tokens import Prompts, each_of, tokenize
from squashlens.errors import InputError
from squashlens.measure.answers.accuracy import Answer, answered_right
from squashlens.measure.collapse.metric import Metric
from squashlens.measure.remedies.changes import form_under, hooks_of, stated
from squashlens.measure.remedies.differences import with_differences
from squashlens.measure.session import Session, model_name
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.records.joining import joined, restated
from squashlens.records.results import Variable
from squashlens.sequences import GrowingSequence
from squashlens.tasks import find
from squashlens.theory.distances import divergence
from squashlens.zoo import bundled

PLACES = ("first", "middle", "last")  # of the content tokens 1, ⌈n/2⌉ and n
# What the bundled model was trained on beside counting and copying; items of each of so many prompts.
TAUGHT, TEXTS, ITEMS = ("taught_last_random", "taught_first_random"), 16, 12
PER_SAMPLE, PER_PLACE = ("family", "length", "sample"), ("family", "length", "place", "sample")
Rows = list[Float[Tensor, "position d"]]


@dataclass(frozen=True)
class Bench:
    """What interventions are measured on: samples of each family at some lengths, and text for the cost.

    `samples` are the same for every intervention, `texts` token ids of any lengths.
    """

    samples: Mapping[str, list[GrowingSequence]]
    answers: Mapping[str, Answer]
    texts: list[Tensor]
    lengths: list[int]
    seed: int

    @classmethod
    def of(
        cls, model: Bridge, families: Mapping[str, GrowingSequence], answer: Any, prompts: Prompts | None,
        lengths: Iterable[int] | None, n_samples: int, seed: int,
    ) -> "Bench":  # fmt: skip
        """Check the families, their answers and the text, and draw the samples."""
        positive(n_samples, "n_samples", "a number of sequences")
        _require_families(families)
        longest = min(len(family) for family in families.values())
        chosen = [longest] if lengths is None else list(lengths)
        if not chosen or sorted(set(chosen)) != chosen or not 1 <= chosen[0] <= chosen[-1] <= longest:
            raise InputError(
                f"lengths={chosen} are not lengths of all families.", f"Give increasing numbers from 1 to {longest}."
            )
        answers = dict(answer) if isinstance(answer, Mapping) else dict.fromkeys(families, answer)
        unknown = [name for name in answers if name not in families]
        if unknown:
            raise InputError(f"answer= has no family {unknown[0]!r}.", f"The families are {', '.join(families)}.")
        drawn = {
            name: [family.unrelated(Random(f"asked {seed} {number}")) for number in range(n_samples)]
            for name, family in families.items()
        }
        given = {name: each for name, each in answers.items() if each is not None}
        return cls(drawn, given, _texts(model, prompts), chosen, seed)

    def compared(
        self, model: Bridge, interventions: Mapping[str, tuple[Any, ...]], norm: Distance, scale: Scale,
        method: Method | None, noise_lengths: int, progress: bool,
    ) -> xr.Dataset:  # fmt: skip
        """All interventions, the first of which is the unchanged model, and their differences to it."""
        if self.texts:
            require_understood(model)
        one = _One(self, model, Metric(norm, scale), method, noise_lengths)
        plain: Rows = []
        found = {}
        # A pass that writes patterns and one that does not differ by rounding, and a hook may need them.
        with patterns_written("interventions are compared bit by bit"):
            for name, parts in bar(interventions.items(), desc="interventions", progress=progress):
                with applied(model, *hooks_of(parts)):
                    found[name] = one.measured(parts, plain)
        return restated(with_differences(joined(found, "change")), {})


@dataclass(frozen=True)
class _One:
    """The measurements of one intervention, whose hooks are on the model."""

    bench: Bench
    model: Bridge
    metric: Metric
    method: Method | None
    noise_lengths: int

    def measured(self, parts: tuple[Any, ...], plain: Rows) -> xr.Dataset:
        """All quantities. `plain` has y of the unchanged model for each text, or gets it if empty."""
        bench, families = self.bench, list(self.bench.samples)
        forms = {name: [form_under(parts, one) for one in drawn] for name, drawn in bench.samples.items()}
        first = next(iter(forms.values()))[0]
        ids = torch.tensor([first.plain(bench.lengths[-1]).ids(first.trunk)])
        session = Session.without_prompt(
            self.model, ids, first.bos, "compare", norm=self.metric.norm, scale=self.metric.scale, method=self.method,
            n_samples=len(forms[families[0]]), lengths=bench.lengths, seed=bench.seed,
            noise_lengths=self.noise_lengths,
        )  # fmt: skip
        given: dict[str, Any] = {"families": {name: drawn[0].name for name, drawn in forms.items()}}
        given |= {"forms": {name: stated(drawn[0], drawn=True) for name, drawn in bench.samples.items()}}
        given |= {"texts": [text.tolist() for text in bench.texts]} if bench.texts else {}
        session = replace(session, facts={**session.facts, **given})
        gaps, floors = zip(*(self._collapse(drawn) for drawn in forms.values()), strict=True)
        text = self.metric.distance("distance of v and v* at the last layer")
        variables: dict[str, Variable] = {"distance": (PER_SAMPLE, torch.stack(gaps), text, self.metric.units)}
        if self.noise_lengths:
            noise = self.metric.derived("how far rounding can move D: the largest over the replayed lengths")
            variables["noise_floor"] = (("family", "sample"), torch.stack(floors), noise, self.metric.units)
        if self.method is not None:
            norms = torch.stack([self._jacobian(drawn) for drawn in forms.values()])
            variables["jacobian_norm"] = (
                PER_PLACE,
                norms,
                f"norm of the Jacobian at a content token, {self.method}",
                "1",
            )
        if bench.answers:
            right = np.stack([self._right(name, drawn) for name, drawn in forms.items()])
            variables["right"] = (PER_SAMPLE, right, "whether the answer is right, greedy decoding", "1")
        if bench.texts:
            rows = [self._before_logits(text) for text in bench.texts]
            plain += rows if not plain else []
            kl = torch.stack([self._divergence(p, q) for p, q in zip(plain, rows, strict=True)])
            if parts and not hooks_of(parts):  # another form of the sequence leaves other text as it is
                kl = torch.full_like(kl, torch.nan)
            what = "KL divergence of the next token, unchanged model from changed, mean over positions"
            variables["kl"] = (("text",), kl, what, "nats")
        coords = {"family": families, "length": bench.lengths}
        if self.method is not None:
            coords["place"] = list(PLACES)
        return session.dataset("interventions on families of prompts", coords, variables)

    def _collapse(self, drawn: list[GrowingSequence]) -> tuple[Tensor, Tensor]:
        """D at the last layer, (length, sample), and its noise floor, (sample)."""
        gaps, floors = [], []
        for form in drawn:
            pairs = capture_pairs(
                self.model, form, lengths=self.bench.lengths, patterns=False, noise_lengths=self.noise_lengths,
                passes="separate", progress=False,  # hooks decide whether passes can be shared, and rounding differs
            )  # fmt: skip
            gaps.append(self.metric.between(pairs)[-2])  # the last is y
            floors.append(self.metric.floor(pairs.v, pairs.star, pairs.replay)[-2])
        return torch.stack(gaps, dim=-1).cpu(), torch.stack(floors).cpu()

    def _jacobian(self, drawn: list[GrowingSequence]) -> Tensor:
        """Norms of the Jacobian at the content tokens of `PLACES`, (length, place, sample)."""
        found = []
        for n in self.bench.lengths:
            ids = torch.tensor([form.plain(n).ids(form.trunk) for form in drawn])
            norms = jacobian_norms(
                self.model, ids, method=self.method or "exact", seed=self.bench.seed, bos=drawn[0].bos, progress=False
            )
            rows = torch.from_numpy(np.atleast_2d(norms.values))
            at = [[form.position(number) for number in (1, (n + 1) // 2, n)] for form in drawn]
            found.append(rows.gather(1, torch.tensor(at)).T)
        return torch.stack(found)

    def _right(self, name: str, drawn: list[GrowingSequence]) -> np.ndarray:
        """Whether each sample is answered correctly, (length, sample); NaN for a family without answers."""
        if name not in self.bench.answers:
            return np.full((len(self.bench.lengths), len(drawn)), np.nan)
        right = answered_right(self.model, drawn, self.bench.answers[name], self.bench.lengths, progress=False)
        return right.T.astype(float)

    def _before_logits(self, ids: Tensor) -> Float[Tensor, "position d"]:
        """y at every position of a text; log-probabilities of a large vocabulary would take megabytes a position."""
        seen: list[Tensor] = []
        keep: Callable[[Tensor], None] = lambda y: seen.append(y[0].detach())  # noqa: E731
        with torch.inference_mode(False), torch.no_grad():
            forward(self.model, ids[None], [(residual_site("y", self.model), keep)])
        return seen[0]

    def _divergence(self, plain: Float[Tensor, "position d"], changed: Float[Tensor, "position d"]) -> Tensor:
        """KL divergence of the next token, mean over positions."""
        both = (log_probabilities(self.model, y) for y in (plain, changed))
        return torch.cat([divergence(p, q).cpu() for p, q in zip(*both, strict=True)]).mean()


def _require_families(families: Mapping[str, Any]) -> None:
    if not families:
        raise InputError("sequence= has no families.", 'Give growing sequences by name, as {"counting": sequence}.')
    for name, family in families.items():
        if len(set(family.alphabet)) < 2:
            raise InputError(
                f"The alphabet of the family {name!r} has one token, so that all its samples are equal.",
                "Give alphabet= at least two tokens, from which samples are drawn.",
            )


def _texts(model: Bridge, prompts: Prompts | None) -> list[Tensor]:
    """Token ids of the texts on which the cost is measured; for the bundled model there is a default, else none."""
    if prompts is None and model_name(model) in bundled():
        asked = [find(TAUGHT[number % 2]).ask(ITEMS, seed=number) for number in range(TEXTS)]
        prompts = [f"{question.prompt} {question.truth}" for question in asked]
    return [] if prompts is None else [tokenize(model, one)[0] for one in each_of(prompts)]
