"""Seeds of certificates: drawn, repeated, and with more bits than a generator of PyTorch keeps."""

import math

import torch

from squashlens.theory.norms import missing_sizes
from squashlens.theory.probes import normals, seed_of


def test_seeds_are_given_drawn_or_zero() -> None:
    assert (seed_of(7), seed_of(0), seed_of(0, certifies=False)) == (7, 0, 0)
    assert seed_of(None, certifies=False) == 0
    drawn = {seed_of(None) for _ in range(100)}
    assert len(drawn) == 100
    assert max(drawn) > 2**55  # far more than the bits that a generator keeps
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_numbers_depend_on_all_bits_of_a_seed() -> None:
    plain = torch.randn(
        3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    assert torch.equal(normals(5)(3, 4), plain)  # seeds below 2³² are those of PyTorch
    seeds = [5, 5 + 2**32, 5 + 2**62, -5, -1]
    found = torch.stack([normals(seed)(2000) for seed in seeds])
    for seed, row in zip(seeds, found, strict=True):
        assert torch.equal(normals(seed)(2000), row)
        assert abs(row.mean()) < 0.1
        assert abs(row.square().mean() - 1) < 0.15
    assert (torch.corrcoef(found).triu(1).abs() < 1).all()
    drawn = normals(2**40)
    assert not torch.equal(drawn(3), drawn(3))


def test_missing_parts_are_covered_as_often_as_stated() -> None:
    """Differences of rank one, whose norm is missed most often: five at once, 600 draws, failure probability 0.2."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(5, 12, generator=generator, dtype=torch.float64)
    found = [
        missing_sizes((normals(seed)(4, 12) @ vectors.T)[..., None], 0.2)
        for seed in range(600)
    ]
    failed = (
        (torch.stack(found) < vectors.norm(dim=-1)).any(dim=-1).double().mean().item()
    )
    assert 0 < failed <= 0.2 + 3 * math.sqrt(0.16 / 600)
    alone, five = (
        missing_sizes(torch.ones(4, 1, 1), 0.2 / 5),
        missing_sizes(torch.ones(4, 5, 1), 0.2),
    )
    assert torch.equal(alone.expand(5), five)
