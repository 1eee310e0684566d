"""Captions of the paper's figures, computed from the results: what is shown, for which model, and with which settings.

Each caption ends with what differs from the paper's figure. All numbers are read from the results that are drawn.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from squashlens import zoo
from squashlens.engine.text.tokens import escape
from squashlens.records.facts import named_models
from squashlens.records.results import provenance
from squashlens.reporting.collapse_sentences import falls
from squashlens.reporting.paper.parts import COPYING
from squashlens.theory.statistics.trends import holm

Found = Mapping[str, xr.Dataset]
LONG = 160  # characters of a prompt
STACKS = {
    "stack_no_positions": "no positions",
    "stack_queries_keys": "sines on queries and keys",
    "stack_inputs": "sines on the inputs",
}
PANELS = {"copy": "(a)", "copy_hint": "(b)", "copy_alternating": "(c)"}
COUNTED = {"sum": "(i) sum", "count_ones": "(ii) ones", "count_bernoulli": "(iii) ones among zeros"}


def caption_of(number: int, found: Found) -> str:
    """The caption of a figure, for its results by the names of their parts."""
    sentences = {
        1: _first, 2: _copying, 3: _errors, 4: _frequencies, 5: _collapse, 6: _errors, 7: _frequencies,
        8: _convergence, 9: _variation,
    }[number](found)  # fmt: skip
    return " ".join([*sentences, *(_of_the_model(found) if number < 8 else ()), *_differs(number, found)])


def role(name: str) -> str:
    """The name of a part, without what says that its answers are sampled."""
    return name.removesuffix("_sampled")


def _first(found: Found) -> list[str]:
    ones, paths, null = (found[name] for name in ("ones_and_zero", "strongest_paths_model", "strongest_paths_uniform"))
    k, at_first = paths.sizes["path"], int((paths["position_at"].isel(layer=0) == 0).sum())
    shares = [_percent(float(one["share"].sum())) for one in (paths, null)]
    prompt = str(provenance(paths)["call"]["prompt"])
    return [
        "(a) Distance D of the residual streams of the final 0 of a sequence 1…10, and of the same sequence with one "
        f"more 1, divided by their root mean square, at every layer, for up to {int(ones['length'][-1])} ones.",
        _falls(ones, float(ones["length_trend_p"][-1])),
        f"(b) The {k} attention paths of largest weight to the last token of the prompt “{_shortened(prompt)}”.",
        f"Wider lines have more weight. Together the paths carry {shares[0]} of the weight of all paths, and "
        f"{at_first} of the {k} start at the first token. Under uniform attention the {k} strongest carry {shares[1]}.",
    ]


def _copying(found: Found) -> list[str]:
    lengths = next(iter(found.values()))["length"].values
    return [
        f"Share of right answers to the question for the last or the first digit of a sequence of {lengths[0]} to "
        f"{lengths[-1]} digits, with one answer to each question at each of {len(lengths)} lengths: "
        "(a) 1…10 and 01…1, "
        + ("(b) the same with a hint, " if "copy_last_hint" in found else "")
        + "(c) alternating zeros and ones. "
        + _unread(found)
    ]


def _errors(found: Found) -> list[str]:
    return [
        "Error of the answers by length, the number of items in the sequence. Lines are medians with quartiles, and "
        f"dots are single answers; the panels below show the share of answers that could not be read. {_drawn(found)}"
    ]


def _frequencies(found: Found) -> list[str]:
    return [
        "How often each answer was given, and how often it was right, over all lengths together. "
        f"{_drawn(found)} {_unread(found)}"
    ]


def _drawn(found: Found) -> str:
    """How many answers there are, and how they were decoded."""
    first = next(iter(found.values()))
    lengths, temperature = first["length"].values, provenance(first)["call"]["temperature"]
    most = max(one.sizes["seed"] for one in found.values())
    if temperature:
        text = f"sampled at temperature {temperature:g}: {most} at each length, in (iii) to different random sequences"
    else:
        text = f"decoded greedily: one at each length, and in (iii) one to each of {most} random sequences"
    return f"Answers are {text}. There are {len(lengths)} lengths from {lengths[0]} to {lengths[-1]}."


def _unread(found: Found) -> str:
    share = float(np.mean([one["unread"].sum("why").mean() for one in found.values()]))
    return f"Of all answers, {_percent(share)} could not be read."


def _collapse(found: Found) -> list[str]:
    first = found["collapse_a"]
    trends = holm([float(one["length_trend_p"][-1]) for one in found.values()])
    floor = max(float(one["noise_floor"].isel(layer=-1).max()) for one in found.values())
    texts = [
        "L∞ distance D of the representations v and v* at the last layer, by the number of digits. v is a sequence, "
        "and v* is the same sequence with its last digit repeated. The band and its line are the minimum, maximum and "
        "mean of D over the attention heads of the last block. Baselines are pairs whose last digit differs "
        f"(contrast), and {first.sizes['draw']} sequences with other digits (unrelated). Rounding changes D by at most "
        f"{_g(floor)} (noise floor), which is not drawn where it is far below all curves."
    ]
    about = {
        "a": "Ones to count", "b": "Random digits to count, the last of them a one", "c": "Ones to copy",
        "d": "Ones to copy, with a comma after every third",
    }  # fmt: skip
    for (name, one), p in zip(found.items(), trends, strict=True):
        letter, last = name[-1], one.isel(layer=-1)
        ratio = float((last["distance"] / last["contrast"]).median())
        texts.append(f"({letter}) {about[letter]}. {_falls(one, p)} The median of D ÷ contrast is {_g(ratio)}.")
    return texts


def _convergence(found: Found) -> list[str]:
    first = next(iter(found.values()))
    texts = [
        "Distance D of the outputs for v and v* (left), and the difference δ of their attention rows (right), in one "
        f"layer of random attention, for up to {int(first['length'][-1])} tokens and {first.sizes['seed']} random "
        "draws. v* is v with its last token repeated. Bands span minimum to maximum."
    ]
    for name, one in found.items():
        here = one.isel(layer=0)
        seen = "observed" if bool(here["premise"]) else "not observed"
        texts.append(
            f"{STACKS[name].capitalize()}: the exponent of D is {_exponent(here, 'exponent')}, and that of δ is "
            f"{_exponent(here, 'variation_exponent')}; a decay of positional information is {seen}."
        )
    return texts


def _variation(found: Found) -> list[str]:
    one = found["total_variation"]
    k, far = int(one["perturbed"]), one.isel(length=-1)
    return [
        "Total variation δ (without the factor ½) of the softmax of two sequences of n numbers, of which the first "
        f"{k} differ, for n up to {int(one['length'][-1])} and {one.sizes['seed']} random draws. The exponent of δ is "
        f"{_exponent(one, 'exponent')}, and that of δ ÷ (1 − k/n) is {_exponent(one, 'leading')}; {_g(one['rate'])} is "
        f"derived for long sequences. At the longest n, δ is {_g(far['total_variation'].mean())}, and "
        f"{_g(far['expected'])} is derived."
    ]


def _of_the_model(found: Found) -> list[str]:
    """One sentence on the model that was measured, with everything that changes it."""
    facts = provenance(next(iter(found.values())))
    text = f"Model: {escape(', '.join(named_models(facts)))} in {facts['dtype']}"
    if facts.get("quantized"):
        text += f", quantized ({escape(str(facts['quantized']))})"
    if facts.get("ambient_hooks"):
        text += f", with the hooks {escape('; '.join(map(str, facts['ambient_hooks'])))}"
    trained = zoo.trained_length(str(facts["model"]))
    return [f"{text}." if trained is None else f"{text}, which was trained on sequences of up to {trained} digits."]


def _differs(number: int, found: Found) -> list[str]:
    """What differs from the paper's figure."""
    if number == 1:
        return ["The paper's figure is a drawing of both effects, for five tokens, and not a measurement."]
    if number == 5:
        return [
            "The paper's figure shows Gemma 7B, without baselines; it does not say which vectors of a head it compares."
        ]
    if number == 8:
        return [
            "The paper shows sinusoidal encodings only; its text allows both readings of them. No model is involved."
        ]
    if number == 9:
        return ["The paper's figure has no derived mean. No model is involved."]
    who = "Gemma 7B" if number > 5 else "Gemini 1.5"
    texts = [f"The paper's figure shows {who}."]
    if number in (6, 7):
        texts.append(f"Figure {number} repeats figure {number - 3} with sampled answers.")
    facts = [provenance(one) for one in found.values()]
    if number != 2 and {"cot", "cot_few_shot"} - {*facts[0]["call"]["mode"]}:
        texts.append("The paper also asks with a chain of thought, with and without examples.")
    if facts[0]["task"]["name"].startswith("taught_"):
        asked = dict.fromkeys(_shortened(str(one["task"]["template"])) for one in facts)
        texts.append(f"The questions are those of the model's training: {'; '.join(f'“{one}”' for one in asked)}.")
        if number == 2 and len(found) < len(COPYING):
            texts.append("There is no panel (b), because the model does not know the words of a hint.")
    else:
        form = " in the model's chat template" if facts[0]["call"]["template"] == "chat" else ""
        texts.append(f"The questions are those of the paper's appendix C.1{form}.")
    return texts


def _falls(one: xr.Dataset, p: float) -> str:
    return falls(one, p).replace(" -", " −")


def _exponent(one: xr.Dataset, name: str) -> str:
    mean, low, high = (f"{float(one[f'{name}_{edge}']):.3f}" for edge in ("mean", "low", "high"))
    return f"{mean} (95 % interval {low} to {high})".replace("-", "−").replace("−0.000", "0.000")


def _shortened(text: str) -> str:
    shown = escape(text)
    return shown if len(shown) <= LONG else f"{shown[:LONG]}…"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _g(value: Any) -> str:
    return f"{float(value):.3g}".replace("-", "−")
