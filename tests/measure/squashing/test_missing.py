"""What the probes say is missing of a derivative, against the norms of differences that are drawn here."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from squashlens.engine.differentiating.spans import Span
from squashlens.errors import UnsoundModelError
from squashlens.measure.squashing.certificates.edges import missing

N, D, WINDOW = 7, 5, 4
CHANCE = 1e-6


def linear_span(derivative: Tensor) -> Span:
    """A stretch that is linear, with the derivative (query, key, out, in)."""
    leaf = torch.randn(1, N, D, dtype=torch.float64).requires_grad_()
    with torch.enable_grad():
        output = torch.einsum("jiod,pid->pjo", derivative, leaf)
    return Span(leaf, {"y": output})


def found_missing(truth: Tensor, known: Tensor, queries: range) -> Tensor:
    edges = torch.linalg.svdvals(known)[..., 0]

    def pulled(places: Sequence[int], directions: Tensor) -> Tensor:
        return torch.einsum("ujo,jiod->uid", directions, known[list(places)])

    return missing(0, linear_span(truth), "y", pulled, edges, queries, CHANCE, 3, 0)


def drawn(seed: int) -> tuple[Tensor, Tensor]:
    """A causal derivative with a window and rows of very different size, and a part of it that is to be missed."""
    torch.manual_seed(seed)
    truth = torch.randn(N, N, D, D, dtype=torch.float64)
    pairs = torch.ones(N, N).tril().bool() & ~torch.ones(N, N).tril(-WINDOW).bool()
    rows = 10.0 ** torch.randint(-6, 7, (N, 1, 1, 1))
    missed = 1e-3 * torch.randn(N, N, D, D, dtype=torch.float64) * torch.rand(N, N, 1, 1)
    return torch.where(pairs[..., None, None], rows * truth, 0.0), torch.where(pairs[..., None, None], rows * missed, 0)


@pytest.mark.parametrize("queries", [range(N), range(3, N), range(N - 1, N)])
def test_no_less_than_the_norm_of_every_difference(queries: range) -> None:
    for seed in range(20):
        truth, missed = drawn(seed)
        missed[: queries[0]] = 0
        found, norms = found_missing(truth, truth - missed, queries), torch.linalg.svdvals(missed)[..., 0]
        assert (found >= norms).all()
        assert (found[norms == 0] == 0).all()  # no path: nothing is missing, exactly
        # No more than the factor of the probes times what all queries miss of a token, by the size of their rows.
        largest = torch.linalg.svdvals(truth - missed)[..., 0].amax(dim=1)
        of_key = torch.linalg.matrix_norm(missed / largest[:, None, None, None]).square().sum(dim=0).sqrt()
        assert (found <= 100 * largest[:, None] * of_key).all()


def test_a_path_that_only_one_of_both_has_is_missing() -> None:
    truth, _ = drawn(0)
    added = torch.zeros_like(truth)
    added[6, 1], added[4, 3] = torch.eye(D), -truth[4, 3]  # one outside the window, and one inside it that is cut
    size = torch.linalg.svdvals(added)[..., 0]
    for whole, known in ((truth + added, truth), (truth, truth + added)):
        found = found_missing(whole, known, range(N))
        assert (found >= size).all()
        assert found[6, 1] > 0
        assert found[4, 3] > 0
        assert found[6, 0] == 0


def test_nothing_is_missing_but_rounding() -> None:
    truth, _ = drawn(0)
    largest = torch.linalg.svdvals(truth)[..., 0].amax(dim=1)
    assert (found_missing(truth, truth, range(N)) <= 1e-12 * largest[:, None]).all()


def test_a_later_token_is_refused_however_small_its_influence() -> None:
    truth, _ = drawn(0)
    known = truth.clone()
    truth[2, 3] = 1e-200
    with pytest.raises(UnsoundModelError, match="Block 0 lets tokens after position 2"):
        found_missing(truth, known, range(N))
