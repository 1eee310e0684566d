"""Run the blocks of two models of one architecture in any mixture, on prompts of one length.

One pass of each model keeps what its blocks were called with: masks, positions, and the streams that enter them. Then
any block of either model is run from any stream. So a mixture costs the blocks from the first exchanged one on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from squashlens.errors import InputError
from squashlens.model.hooking.hook import Hook, Watcher
from squashlens.run.derivatives.replay import Replay, record, replayable
from squashlens.run.run import Run

Exchanged = Literal["block", "attention", "mlp"]
Stream = Float[Tensor, "prompt position d"]
ATTENTION_OUTPUT = "blocks.{block}.hook_attn_out"  # what attention adds to the stream


def require_exchangeable(reference: Run, other: Run) -> None:
    """Raise an error unless blocks of the two models can take each other's places."""
    for name, run in (("reference", reference), ("other", other)):
        if not replayable(run, ()):
            raise InputError(
                f"The blocks of {name}= ({run.architecture}) cannot be run one by one: it has hooks, or its blocks "
                "depend on more than the stream that enters them.",
                "Use `compare_models`, which runs whole passes only.",
            )
    ours = (reference.architecture, reference.n_blocks, reference.width)
    theirs = (other.architecture, other.n_blocks, other.width)
    if ours != theirs:
        raise InputError(
            f"The two models have other architectures: {ours} and {theirs} (class, blocks, width).",
            "Give a model and a changed copy of it, such as one of `quantize_weights`; `compare_models` "
            "compares any two.",
        )


@dataclass(frozen=True)
class OneModel:
    """A model of the two, with its calls of every block on some prompts, and the streams v⁽⁰⁾ … v⁽ᴸ⁾."""

    replay: Replay
    streams: list[Stream]

    @property
    def n_blocks(self) -> int:
        return self.replay.run.n_blocks

    def after(self, block: int, stream: Stream, *hooks: Hook | Watcher) -> Stream:
        """What a block makes of a stream."""
        run = self.replay.run
        with self.replay.running():
            return self.replay.leaving(block, stream.to(run.device, run.dtype), *hooks)

    def y_from(self, block: int, stream: Stream) -> Float[Tensor, "prompt d"]:
        """y of the last tokens, if this stream enters a block (or the final norm, for block L)."""
        for later in range(block, self.n_blocks):
            stream = self.after(later, stream)
        return self.y_of(stream)

    def y_of(self, stream: Stream) -> Float[Tensor, "prompt d"]:
        """The final norm of the last tokens' stream."""
        run = self.replay.run
        return run.model.ln_final(stream[:, -1:].to(run.device, run.dtype))[:, 0]

    def with_attention_of(
        self, attending: "OneModel", block: int, stream: Stream
    ) -> Stream:
        """What a block makes of a stream, if its attention is that of the other model, from the same stream."""
        site = ATTENTION_OUTPUT.replace("{block}", str(block))
        # What the other model's attention adds to the stream.
        outputs: list[Tensor] = []

        def keep(output: Tensor) -> None:
            outputs.append(output)

        def exchange(output: Tensor) -> Tensor:
            return outputs[0].to(output)

        attending.after(block, stream, Watcher(site, keep))
        return self.after(block, stream, Watcher(site, exchange))


@dataclass(frozen=True)
class Pair:
    """A reference and another model on the same prompts."""

    reference: OneModel
    other: OneModel

    def y_keeping(
        self, exchanged: Mapping[int, Exchanged]
    ) -> Float[Tensor, "prompt d"]:
        """y of the other model's last tokens, if some of its blocks, or parts of them, are the reference's.

        ``{3: "attention"}`` exchanges the attention of block 3.
        """
        # Below the first exchanged block the stream is that of the other model's own pass.
        first = min(exchanged, default=self.other.n_blocks)
        stream = self.other.streams[first]
        for block in range(first, self.other.n_blocks):
            stream = self._after(block, stream, exchanged.get(block))
        return self.other.y_of(stream)

    def _after(self, block: int, stream: Stream, part: Exchanged | None) -> Stream:
        """What the other model's block makes of a stream, if this part of it is the reference's; None for nothing."""
        if part is None:
            return self.other.after(block, stream)
        if part == "block":
            return self.reference.after(block, stream)
        if part == "attention":
            return self.other.with_attention_of(self.reference, block, stream)
        # The reference's MLP: its block, with the other model's attention.
        return self.reference.with_attention_of(self.other, block, stream)


def recorded_pair(
    reference: Run, other: Run, ids: Int[Tensor, "prompt position"]
) -> Pair:
    """Both models, run once on the prompts."""
    return Pair(_recorded(reference, ids), _recorded(other, ids))


def _recorded(run: Run, ids: Int[Tensor, "prompt position"]) -> OneModel:
    """One model, run once on the prompts."""
    replay = record(run, ids.to(run.device), (), 0, run.n_blocks)
    streams = [replay.calls[block].entering for block in range(run.n_blocks)]
    # v⁽ᴸ⁾ enters no block, so the last block is run again for it.
    last = run.n_blocks - 1
    streams.append(OneModel(replay, streams).after(last, streams[last]))
    return OneModel(replay, streams)
