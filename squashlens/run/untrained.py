"""A run of the same prompts with random weights: the baseline of what training has to do with a number."""

from collections.abc import Iterator
from contextlib import contextmanager

from squashlens.model.loading.random_weights import with_random_weights
from squashlens.model.proof import opened
from squashlens.run.run import Run


@contextmanager
def untrained(run: Run, seed: int) -> Iterator[Run]:
    """The run with a model of the same architecture, whose random weights are drawn from `seed`."""
    model = with_random_weights(run.model, seed)
    with opened(model):
        yield run.of_model(model)
