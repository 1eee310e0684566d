"""What each attention and each MLP does for the answer at the last token: what it writes, and what is left without it.

What a sublayer writes into the logits directly, and what the answer becomes without it, are two questions: later blocks
may depend on it, or undo it.
"""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, ChoicesOfPrompts, Missing
from squashlens.bars import bar
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import device_of, dtype_of, n_blocks, residual_site
from squashlens.engine.applied import applied
from squashlens.engine.budget import batch_memory, pass_bytes
from squashlens.engine.hooking.hook import Hook
from squashlens.engine.running.forward import forward, log_probabilities, logits_of, require_understood
from squashlens.engine.running.generate import empty_cache
from squashlens.engine.running.last_tokens import at_last_tokens
from squashlens.engine.running.streamed import patterns_written
from squashlens.engine.text.tokens import tokenize
from squashlens.errors import InputError
from squashlens.hooks.interventions import SUBLAYERS
from squashlens.measure.answers.choices import Choices, mean_of, of_choices
from squashlens.measure.registration import measurement
from squashlens.measure.session import streams_at
from squashlens.records.results import Variable
from squashlens.sequences import Ids

HALVES = ("select", "confirm")
WITHOUT = {"zero": "output 0", "mean": "the mean output of the other prompts"}
SCALE = "ln_final.hook_scale"
CACHED = "the last token continues a cache"
OVER = ("block", "sublayer")


@measurement("sublayer_repairs")
def sublayer_effect(
    model: Bridge,
    prompts: Sequence[str],
    answers: Sequence[str],
    *,
    choices: ChoicesOfPrompts = None,
    missing: Missing = "zero",
    texts: Sequence[str] = (),
    seed: int = 0,
) -> xr.Dataset:
    """What each attention and MLP writes into the answer at the last token, and what changes without its output there.

    The output is what the sublayer adds to the residual stream of the last token, after a norm of its own if it has
    one. It *repairs* an answer that was wrong to leave it out, if the right choice then leads, and *breaks* one that
    was right if it no longer does. Of many sublayers one repairs something by chance. So half of the prompts, drawn
    with `seed`, are there to select a sublayer, and the other half to confirm it.

    Args:
        model, prompts, answers, choices: as in `answer_by_layer`, but the first tokens of a prompt's choices must
            differ, since only the last token of the prompt is changed. Use 48 prompts or more.
        missing: what takes the place of the output: ``"zero"``, the default, or ``"mean"``, its mean over the last
            tokens of the other prompts.
        texts: other texts, whose loss is measured with the output replaced at all their tokens, by 0 or by its mean
            over all tokens of these texts; none by default.
        seed: random seed of the two halves; 0 by default.

    Returns:
        Dataset. Over (prompt), with the coordinates `of_half` and `answer`: `log_odds`, the logit of the right choice
        minus the largest other one. Over (prompt, block, sublayer), with `sublayer` ``"attention"`` or ``"mlp"``:
        `log_odds_without`; `written`, what the output adds to this difference by itself, through a final norm with its
        scale held constant, before a scale or soft cap of the logits (NaN if outputs do not add up to the stream). Over
        (half, block, sublayer): `repaired`, the share of wrong answers that become right; `broken`, the share of right
        ones that become wrong; `change`, the mean change of the difference; each with the ends `…_low` and `…_high` of
        a 95 % interval. Over (half): `wrong` and `right`, numbers of prompts. With `texts`, over (block, sublayer):
        `loss_change`, in nats per token, with an interval over texts. The scalars `selected_block` and
        `selected_sublayer` name the one that repairs most, less what it breaks, in the half that selects.

    Raises:
        InputError: the cases of `answer_by_layer`; choices with equal first tokens; fewer than four prompts.
        UnsoundModelError: the logits do not follow from y, or hooks at the outputs have no effect.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 01{digit} =" for digit in "0123456789"]
    >>> found = sl.sublayer_effect(model, prompts, [*"0123456789"])
    >>> float(found["broken"].sel(half="confirm", sublayer="attention").max())  # four of five
    0.8
    """
    if len(prompts) < 4:
        raise InputError(f"{len(prompts)} prompts are too few for two halves.", "Give at least 4, better 48 or more.")
    session, asked = of_choices(
        model, prompts, answers, choices, "sublayer_effect", missing=missing, texts=list(texts), seed=seed
    )
    first, sound = asked.first_tokens(), session.model
    require_understood(sound)
    outputs, written = _outputs(sound, asked, first)
    others = (outputs.sum(dim=1, keepdim=True) - outputs) / (len(prompts) - 1)
    put = torch.zeros_like(outputs) if missing == "zero" else others
    rows = np.arange(len(prompts))
    logits = np.stack(
        [_logits(sound, ids, put[:, row], first[row]) for row, ids in enumerate(bar(asked.prompts, desc="prompts"))]
    )  # (prompt, variant, choice)
    right = logits[rows, :, asked.right]
    logits[rows, :, asked.right] = -np.inf
    odds = right - logits.max(axis=-1)
    order = np.random.default_rng(seed).permutation(len(rows))
    halves = np.where(np.isin(rows, order[: len(rows) // 2]), *HALVES)
    shape = (len(rows), n_blocks(sound), len(SUBLAYERS))
    text = f"with {WITHOUT[missing]} at the last token"
    variables: dict[str, Variable] = {
        "log_odds": (("prompt",), odds[:, 0], "logit of the right choice minus the largest other one", "1"),
        "log_odds_without": (("prompt", *OVER), odds[:, 1:].reshape(shape), f"the same {text}", "1"),
        "written": (("prompt", *OVER), written.reshape(shape), "what the output adds to the difference directly", "1"),
    }
    variables |= _by_half(odds, halves, shape[1:], text)
    if texts:
        variables |= _losses(sound, [tokenize(sound, one) for one in texts], missing)
    chosen = _selected(odds[halves == HALVES[0]])
    at = {"selected_block": chosen // 2, "selected_sublayer": [*SUBLAYERS][chosen % 2]}
    labels = {"half": [*HALVES], "of_half": ("prompt", halves), "answer": ("prompt", list(answers))}
    over = {"prompt": rows, "block": np.arange(n_blocks(sound)), "sublayer": [*SUBLAYERS]}
    return session.dataset("sublayer effect", {**over, **labels, **at}, variables)


def _by_half(
    odds: Float[np.ndarray, "prompt variant"], halves: np.ndarray, shape: tuple[int, ...], text: str
) -> dict[str, Variable]:
    """Shares of repaired and broken answers, and the mean change, in each half."""
    stacked: dict[str, list[np.ndarray]] = {}
    labels: dict[str, tuple[str, str]] = {}
    for half in HALVES:
        own, without = odds[halves == half, :1], odds[halves == half, 1:]
        wrong = own[:, 0] <= 0
        parts = {
            **mean_of("repaired", OVER, (without > 0)[wrong].T, f"share of wrong answers that are right {text}"),
            **mean_of("broken", OVER, (without <= 0)[~wrong].T, f"share of right answers that are wrong {text}"),
            **mean_of("change", OVER, (without - own).T, f"mean change of the difference of logits {text}"),
        }
        for name, (_, values, label, units) in parts.items():
            stacked.setdefault(name, []).append(np.asarray(values).reshape(shape))
            labels[name] = label, units
    found: dict[str, Variable] = {n: (("half", *OVER), np.stack(each), *labels[n]) for n, each in stacked.items()}
    for name, which in {"wrong": odds[:, 0] <= 0, "right": odds[:, 0] > 0}.items():
        counts = [int(which[halves == half].sum()) for half in HALVES]
        found[name] = (("half",), np.array(counts), f"number of {name} answers", "prompts")
    return found


def _selected(odds: Float[np.ndarray, "prompt variant"]) -> int:
    """The sublayer that repairs most answers, less those that it breaks; of equal ones that of the largest change."""
    own, without = odds[:, :1], odds[:, 1:]
    gained = ((without > 0).astype(int) - (own > 0)).sum(axis=0)
    return int(np.lexsort((without.sum(axis=0), gained))[-1])


def _outputs(
    model: Bridge, asked: Choices, first: Tensor
) -> tuple[Float[Tensor, "variant prompt d"], Float[np.ndarray, "prompt variant"]]:
    """The outputs of all sublayers at the last tokens, and what each adds to the right choice's lead directly."""
    sites, (bottom, last, y) = _sites(model), (residual_site(layer, model) for layer in (0, n_blocks(model), "y"))
    values = at_last_tokens(model, asked.prompts, [*sites, bottom, last, y, SCALE]).values
    outputs, of_y = torch.stack([values[site] for site in sites]), values[y].to(device_of(model))
    logits = logits_of(model, of_y).gather(1, first.to(of_y.device)).cpu().double()
    rows = torch.arange(len(first))
    right = torch.from_numpy(asked.right)
    logits[rows, right] = -torch.inf
    pairs = torch.stack([first[rows, right], first[rows, logits.argmax(dim=-1)]])
    with torch.no_grad():
        towards = model.W_U[:, pairs.to(model.W_U.device)].double().cpu()
    normed = partial(_normed, model, scale=values[SCALE].double())
    written = torch.einsum("vpd,dp->pv", normed(outputs.double()), towards[:, 0] - towards[:, 1])
    bias = getattr(model.ln_final, "bias", None)
    whole = normed(values[last].double()) + (0 if bias is None else bias.detach().cpu().double())
    added = values[bottom].double() + outputs.double().sum(dim=0)
    known = agree(added, values[last], dtype_of(model)) and agree(whole, values[y], dtype_of(model))
    return outputs, np.where(known, written.numpy(), np.nan)


def _sites(model: Bridge) -> list[str]:
    """The hook points of the outputs: those of attention and MLP of block 0, then of block 1, and so on."""
    return [site.replace("{block}", str(block)) for block in range(n_blocks(model)) for site in SUBLAYERS.values()]


def _normed(model: Bridge, values: Float[Tensor, "*many prompt d"], scale: Float[Tensor, "prompt 1"]) -> Tensor:
    """The final norm as a linear map, with the scale that it has on the whole stream, and without its bias."""
    if str(model.cfg.normalization_type).startswith("LN"):
        values = values - values.mean(dim=-1, keepdim=True)
    gain = model.ln_final.weight.detach().cpu().double()
    return values / scale * (gain + 1 if getattr(model.cfg, "rmsnorm_uses_offset", False) else gain)


def _logits(model: Bridge, ids: Ids, put: Float[Tensor, "variant d"], first: Tensor) -> np.ndarray:
    """The logits of the choices for a prompt as it is, and with each sublayer's output replaced at its last token.

    The other tokens are run once, if the last token on their cache is what it is in the whole prompt.
    """
    y = None
    if len(ids) > 1 and (cache := empty_cache(model)) is not None:
        row = torch.tensor([ids], device=device_of(model))
        with torch.inference_mode(False), torch.no_grad(), patterns_written(CACHED):
            forward(model, row[:, :-1], [], {"use_cache": True, "past_key_values": cache})
            site = residual_site("y", model)
            y = torch.cat([*_replaced(model, row[:, -1:], put, cache)])[:, -1]
            whole = streams_at(model, row, [site], at=-1)[site]
        if not agree(y[:1], whole, dtype_of(model)):
            y = None
    if y is None:
        row = torch.tensor([ids], device=device_of(model))
        y = torch.cat([part[:, -1].clone() for part in _replaced(model, row, put, None)])
    with torch.inference_mode(False), torch.no_grad():
        return logits_of(model, y)[:, first.to(y.device)].double().cpu().numpy()


def _replaced(
    model: Bridge, row: Tensor, put: Float[Tensor, "variant d"], cache: Any, *, everywhere: bool = False
) -> Iterator[Float[Tensor, "some position d"]]:
    """y of a prompt as it is, and of a copy for each sublayer whose output is replaced at its last token, or at all."""
    whole = row.shape[1] + (0 if cache is None else int(cache.get_seq_length()))
    size = max(1, int(batch_memory(model) / pass_bytes(model, 1, whole)))
    place = slice(None) if everywhere else -1
    for numbers in torch.arange(len(put) + 1).split(size):
        kept: list[Tensor] = []
        hooks = [_hook(int(n) - 1, k, put[int(n) - 1], place) for k, n in enumerate(numbers) if n]
        context = None
        if cache is not None:
            own = copy.deepcopy(cache)
            own.batch_repeat_interleave(len(numbers))
            context = {"use_cache": True, "past_key_values": own}
        with torch.inference_mode(False), torch.no_grad(), applied(model, *hooks):
            watch = [(residual_site("y", model), lambda y, kept=kept: kept.append(y.clone()))]
            forward(model, row.expand(len(numbers), -1).clone(), watch, context)
        yield kept[0]


def _hook(variant: int, copied: int, vector: Tensor, place: Any) -> Hook:
    """A hook that puts a vector in place of one sublayer's output in one copy of the prompt."""

    def edit(output: Tensor) -> Tensor:
        changed = output.clone()
        changed[copied, place] = vector.to(output)
        return changed

    site = [*SUBLAYERS.values()][variant % len(SUBLAYERS)]
    return Hook("sublayer_effect", site, edit, (variant // len(SUBLAYERS),))


def _losses(model: Bridge, texts: Sequence[Tensor], missing: Missing) -> dict[str, Variable]:
    """How the loss on texts changes when a sublayer's output is replaced at every token."""
    sites = _sites(model)
    seen = [streams_at(model, ids, sites) for ids in texts] if missing == "mean" else []
    means = [torch.cat([one[site][0] for one in seen]).mean(dim=0) for site in sites] if seen else []
    put = torch.stack(means) if means else torch.zeros(len(sites), int(model.cfg.d_model))
    losses = []
    for ids in bar(texts, desc="texts"):
        following, own = ids[0, 1:, None].cpu(), []
        for y in _replaced(model, ids, put, None, everywhere=True):
            for variant in y:
                logs: list[float] = []
                for part in log_probabilities(model, variant[:-1]):
                    logs += part.cpu().gather(1, following[len(logs) : len(logs) + len(part)])[:, 0].tolist()
                own.append(-np.mean(logs))
        losses.append(np.array(own[1:]) - own[0])
    values = np.stack(losses, axis=-1).reshape(n_blocks(model), len(SUBLAYERS), len(texts))
    text = f"change of the loss on texts with {'output 0' if missing == 'zero' else 'the mean output'} at every token"
    return {**mean_of("loss_change", OVER, values, text, "nats")}
