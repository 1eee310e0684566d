"""Positional encodings as functions of positions. All are computed in float64, whatever the dtype of the stack."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

BUCKETS, FARTHEST = 32, 128  # T5: number of ranges of distance, and the distance at which the last range begins


def sinusoids(position: Int[Tensor, " token"], width: int, base: float) -> Float[Tensor, "token d"]:
    """Sinusoidal encodings: sines in even coordinates, cosines in odd ones (Vaswani et al. 2017).

    PE(p, 2j) = sin(p base^(−2j/d)).

    >>> sinusoids(torch.tensor([0, 1]), 4, 10000.0)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    angle = _angles(position, width, base)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def rotate(
    x: Float[Tensor, "*many token dot"], position: Int[Tensor, " token"], base: float
) -> Float[Tensor, "*many token dot"]:
    """Rotary embeddings (RoPE, Su et al. 2021): coordinates j and j + half are rotated by p base^(−2j/d).

    So ⟨R_p q, R_s k⟩ depends on positions only through p − s.
    """
    angle = _angles(position, x.shape[-1], base)
    cos, sin = angle.cos().to(x), angle.sin().to(x)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _angles(position: Int[Tensor, " token"], width: int, base: float) -> Float[Tensor, "token dot"]:
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=position.device) / width
    return position[:, None].double() * base**-exponent


def alibi(distance: Int[Tensor, "row key"], heads: int) -> Float[Tensor, "head row key"]:
    """ALiBi biases: −2^(−8h/H) |distance| for heads h = 1…H (Press et al. 2022)."""
    head = torch.arange(1, heads + 1, dtype=torch.float64, device=distance.device)
    return -(2 ** (-8 * head / heads))[:, None, None] * distance.abs()


def t5_bucket(distance: Int[Tensor, "row key"], *, both_ways: bool) -> Int[Tensor, "row key"]:
    """The index of T5's range for each distance: 32 ranges, one for each small distance and wider ones up to 128.

    `distance` is query minus key position. With `both_ways` half of the ranges are for keys after the query; otherwise
    all such keys count as distance 0.

    Source: Raffel et al. 2020, appendix; `relative_position_bucket` of the published code.

    >>> t5_bucket(torch.tensor([[0, 15, 16, 127, 128, 9999]]), both_ways=False).tolist()
    [[0, 15, 16, 31, 31, 31]]
    """
    count = BUCKETS // 2 if both_ways else BUCKETS
    start = torch.where(distance < 0, count, 0) if both_ways else torch.zeros_like(distance)
    far = distance.abs() if both_ways else distance.clamp(min=0)
    exact = count // 2
    # The published code uses float32, and at distances that are exact powers the last bit decides.
    ratio = (far.clamp(min=1).float() / exact).log() / torch.tensor(FARTHEST / exact).log().item()
    wide = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
    return start + torch.where(far < exact, far, wide)
