"""Vector–Jacobian products of one token: where they come from, and a sketch that takes as many as it needs."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from squashlens._typing import RowsKept, Target
from squashlens.bars import bar
from squashlens.measure._rows import Batches, at_query, require_causal, room_for, spectral_of, told
from squashlens.measure._session import Session
from squashlens.model.anatomy import width
from squashlens.model.budget import cotangents, cotangents_on_graph, require_products
from squashlens.model.hooks import Hook, Recipe
from squashlens.model.replay import record, replayable
from squashlens.model.spans import open_spans
from squashlens.model.streamed import implementation
from squashlens.remarks import remark
from squashlens.theory.norms import mean_interval, spectral_norms

FIRST = 16  # probes of a sketch that stops by itself, before it looks for the first time
ByToken = Float[Tensor, "prompt position"]


class Products:
    """uᵀJ_i for cotangents u at one token: block by block where the model can be replayed, else on the whole graph."""

    def __init__(
        self, session: Session, hooks: Sequence[Hook | Recipe], source: int, top: int, to: Target, query: int,
        chunk: int | None, progress: bool,
    ) -> None:  # fmt: skip
        model, ids, (prompts, n) = session.model, session.ids, session.ids.shape
        self.session, self.query, self.progress = session, query, progress
        blockwise = top > source and replayable(model, hooks)
        if blockwise:
            batch = chunk or cotangents(model, prompts, n)
            require_products(model, prompts, n, batch)
            replay = record(model, ids, hooks, source, top)
            self.attention = "streamed, block by block"

            def products(directions: Float[Tensor, "cotangent d"]) -> Iterator[Tensor]:
                entering = replay.calls[source][0]
                standing = directions.to(entering.device, entering.dtype)[:, None].expand(-1, prompts, -1)
                return replay.gradients(query, to, standing, batch)
        else:
            self.attention = implementation(model)
            batch = chunk or cotangents_on_graph(model, prompts, n)
            span = open_spans(model, ids, hooks, [source], top)[source]

            def products(directions: Float[Tensor, "cotangent d"]) -> Iterator[Tensor]:
                return at_query(span.outputs[to], query, span.leaf, directions, batch)()

        self._products = products

    def along(self, directions: Float[Tensor, "cotangent d"]) -> Batches:
        """The products along `directions` in batches, made again as often as they are asked for."""

        def again() -> Iterator[Tensor]:
            with bar(total=len(directions), desc="jacobian", unit="VJP", progress=self.progress) as shown:
                for rows in self._products(directions):
                    yield require_causal(rows, self.query, "The model")
                    shown.update(len(rows))

        return again

    def spectral(self, directions: Float[Tensor, "cotangent d"], rows: RowsKept) -> tuple[ByToken, RowsKept]:
        """Spectral norms, and how the rows were kept together."""
        model, reach, count = self.session.model, self.query + 1, len(directions)
        like = next(model.parameters())
        room = room_for(rows, len(self.session.ids), reach, count, width(model), like)
        say = told(room, reach, count)
        if self.progress and say:
            tqdm.write(say)
        return spectral_of(self.along(directions), room, reach, count, spectral_norms, self.progress), room.way


def until(products: Products, rtol: float, seed: int) -> tuple[ByToken, dict[str, ByToken], dict[str, Any]]:
    """A Frobenius norm from as many probes as it takes, the ends of its interval, and what the provenance says."""
    d, generator = width(products.session.model), torch.Generator().manual_seed(seed)
    squares: list[Tensor] = []
    taken = 0
    while True:
        more = min(d - taken, max(FIRST, taken // 2))
        directions = torch.randn(more, d, generator=generator, dtype=torch.float64)
        squares += [rows.double().square().sum(dim=-1) for rows in products.along(directions)()]
        taken += more
        mean, half = mean_interval(torch.cat(squares))
        ends = {"low": (mean - half).clamp(min=0).sqrt(), "high": (mean + half).sqrt()}
        reached = float(((ends["high"] - ends["low"]) / (2 * mean.sqrt())).nan_to_num(0).max())
        if reached <= rtol or taken == d:
            break
    if reached > rtol:
        remark(f"With {taken} probes, as many as an exact norm takes, ± {reached:.1%} is reached.")
    about = {"kind": "estimate", "probes": taken, "seed": seed, "rtol": rtol, "reached": reached}
    return mean.sqrt(), ends, {"sketch": about}
