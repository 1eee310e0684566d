"""Each intervention against a slow twin: the pattern made again, another model on the same weights, an edited input."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens import hooks as change
from tests.cases import CONFIGS, FAMILIES, few, random_model, save_random
from tests.conftest import PROMPT
from tests.hooks.passes import IDS, logits, patterns

N = IDS.shape[1]
QUERY, KEY = torch.arange(N)[:, None], torch.arange(N)


def with_sink(family: str, weights: torch.Tensor) -> torch.Tensor:
    """Rows with the weight of a learned sink, which is one more key, at their ends."""
    rest = 1 - weights.sum(dim=-1, keepdim=True)
    return torch.cat([weights, rest], dim=-1) if family == "gpt_oss" else weights


def renormalised(weights: torch.Tensor) -> torch.Tensor:
    """Rows divided by their sums, without what stands behind the prompt's own keys."""
    return (weights / weights.sum(dim=-1, keepdim=True))[..., :N]


@pytest.mark.parametrize("family", ["gpt_oss", *few(FAMILIES)])
def test_masks_leave_what_they_say_in_the_heads_they_say(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    """Block 0, whose input no mask changes: the old weights over what is left; the other head as it was."""
    model = bridge_of(family)
    before = patterns(model)[0]
    hidden = {
        change.mask_attention((6, 8), (1, 2, 8), heads=(1,)): torch.isin(
            QUERY, torch.tensor([6, 8])
        )
        & torch.isin(KEY, torch.tensor([1, 2, 8])),
        change.sliding_window(3, heads=(1,)): QUERY - KEY >= 3,
        change.sliding_window(2, sink=2, heads=(1,)): (QUERY - KEY >= 2) & (KEY >= 2),
        change.mask_tokens((0,), heads=(1,)): (KEY == 0).expand(N, N),
    }
    for hook, gone in hidden.items():
        after = patterns(model, hook)[0]
        left = torch.where(gone & (QUERY > KEY), 0.0, 1.0)
        left = with_sink(family, before[:, 1]) * torch.nn.functional.pad(
            left, (0, family == "gpt_oss"), value=1.0
        )
        torch.testing.assert_close(
            after[:, 1], renormalised(left), rtol=1e-4, atol=1e-6
        )
        assert not torch.equal(after[:, 1], before[:, 1])
        assert torch.equal(after[:, 0], before[:, 0])


@pytest.mark.parametrize("family", ["gpt_oss", *few(FAMILIES)])
def test_temperature_and_uniform(family: str, bridge_of: Callable[..., Any]) -> None:
    """Weights to the power 1/T, also of a family that caps or windows its logits; evenly over what is seen."""
    model = bridge_of(family)
    before = with_sink(family, patterns(model)[0])
    for temperature in (0.5, 2.0):
        after = patterns(model, change.attention_temperature(temperature))[0]
        torch.testing.assert_close(
            after, renormalised(before ** (1 / temperature)), rtol=1e-3, atol=1e-6
        )
    plain = patterns(model)
    for block, pattern in patterns(model, change.uniform_attention()).items():
        seen = (with_sink(family, plain[block]) > 0).float()
        torch.testing.assert_close(pattern, renormalised(seen), rtol=1e-5, atol=1e-7)


def test_uniform_attention_makes_the_null_real(bridge_of: Callable[..., Any]) -> None:
    """Under it the path bound of the model's own attention is the bound's null, windows included."""
    for family in ("gemma", "mistral", "gpt_oss"):
        model = bridge_of(family)
        null = sl.path_bound(model, IDS, attention="uniform")
        with sl.applied(model, change.uniform_attention()):
            found = sl.path_bound(model, IDS)
        torch.testing.assert_close(
            torch.tensor(found.values), torch.tensor(null.values), rtol=1e-5, atol=1e-7
        )


def test_imposed_window_is_the_native_one(
    bridge_of: Callable[..., Any], tmp_path: Any
) -> None:
    """Mistral's weights without its window, and the window by hook."""
    native = bridge_of("mistral")
    config = type(CONFIGS["mistral"])(
        **{**CONFIGS["mistral"].to_dict(), "sliding_window": None}
    )
    random_model(CONFIGS["mistral"]).save_pretrained(tmp_path)
    save_random(config, tmp_path / "free")
    (tmp_path / "free" / "model.safetensors").write_bytes(
        (tmp_path / "model.safetensors").read_bytes()
    )
    free = sl.load(tmp_path / "free", device="cpu")
    assert not torch.allclose(logits(free), logits(native), atol=1e-3)
    torch.testing.assert_close(
        logits(free, change.sliding_window(5)), logits(native), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("family", few(FAMILIES))
def test_what_hides_nothing_changes_no_bit(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of(family)
    plain = logits(model)
    for hook in (
        change.sliding_window(N),
        change.sliding_window(1, sink=N),
        change.mask_attention((3,), (3, 4)),
        change.attention_temperature(1.0),
        change.zero_attention((N - 1,)),
    ):
        assert torch.equal(logits(model, hook), plain)
    with (
        contextlib.suppress(ZeroDivisionError),
        sl.applied(model, change.sliding_window(2)),
    ):
        assert not torch.equal(logits(model), plain)
        raise ZeroDivisionError
    assert torch.equal(logits(model), plain)


@pytest.mark.parametrize("family", few(FAMILIES))
def test_masking_tokens_everywhere_is_deleting_them_with_a_gap(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    """The other tokens, at their old positions, without the masked ones."""
    model = bridge_of(family)
    gone = [3, 6]
    kept = [i for i in range(N) if i not in gone]
    masked = logits(model, change.mask_tokens(gone))[:, kept]
    place = torch.tensor([kept])
    apart = place[0, :, None] - place[0]
    seen = {"full_attention": apart >= 0}
    window = getattr(CONFIGS[family], "sliding_window", None)
    if window:  # in positions, not in what is left of the tokens
        seen["sliding_attention"] = (apart >= 0) & (apart < window)
    masks = {
        kind: torch.where(s, 0.0, torch.finfo(torch.float32).min)[None, None]
        for kind, s in seen.items()
    }
    mask: Any = masks if family in ("gemma2", "gemma3") else list(masks.values())[-1]
    with torch.no_grad():
        short = model(
            IDS[:, kept], position_ids=place, attention_mask=mask, use_cache=False
        )
    torch.testing.assert_close(masked, short, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", few(FAMILIES))
def test_zeroed_weights_streams_and_groups(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of(family)
    before = patterns(model)[0]
    after = patterns(model, change.zero_attention((2, 7), blocks=(0,), heads=(0,)))[0]
    hidden = torch.isin(KEY, torch.tensor([2, 7])) & (QUERY > KEY)
    assert torch.equal(after[:, 0], before[:, 0].masked_fill(hidden, 0.0))
    assert torch.equal(after[:, 1:], before[:, 1:])
    with sl.applied(model, change.zero_residual((4,), blocks=(1,))):
        streams = sl.capture(model, IDS, keep="residuals").residuals
    assert (streams[1][0, 4] == 0).all()
    assert (streams[1][0, 5] != 0).any()
    seen: list[torch.Tensor] = []
    look = sl.hooks.Hook(
        "look", "blocks.0.attn.hook_v", lambda v: seen.append(v[0].detach().clone())
    )
    logits(model, change.zero_values((1,), kv_heads=(0,)), look)
    assert (seen[-1][1, 0] == 0).all()
    assert (seen[-1][2] != 0).any()
    if seen[-1].shape[1] > 1:
        assert (seen[-1][1, 1] != 0).any()


def test_places_are_those_of_the_token_coordinate(tiny: Any) -> None:
    labels = sl.path_bound(tiny, PROMPT)["token"].values
    for text in ("1", "0", "ones", "=", "?"):
        found = sl.hooks.find_positions(tiny, PROMPT, text)
        assert [
            i for i, label in enumerate(labels) if str(label).strip() == text
        ] == list(found)
    assert sl.hooks.find_positions(tiny, PROMPT, " ones ") == sl.hooks.find_positions(
        tiny, PROMPT, "ones"
    )
    assert sl.hooks.find_positions(
        tiny, sl.prompts.tokenize(tiny, PROMPT), str.isdigit
    ) == (10, 11, 12, 13)
    with sl.applied(
        tiny, sl.hooks.mask_tokens(sl.hooks.find_positions(tiny, PROMPT, "0"))
    ):
        bound = sl.path_bound(tiny, PROMPT).values
    assert bound[12] == 0
    assert bound[11] > 0
