"""Shapes of models with random weights, and the works that are timed on each: `python -m tests.cuda.works MODEL`.

Each line that begins with `MARK` is a JSON object for the process that waits: a work is done, or failed. After a
failure, such as memory that runs out, the next works go on.
"""

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
)

import squashlens as sl
from squashlens.model.anatomy import windows
from squashlens.model.live import bridge_around
from squashlens.model.verify import shared_copy
from squashlens.sequences import GrowingSequence
from squashlens.theory.attention import LONGEST

MARK = "@squashlens "
TOKENS: dict[str, Any] = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2)
BATCH = 32  # cotangents at a time: saturates a card from a few hundred tokens on
PROBES = 32


GEMMA: dict[str, Any] = dict(
    vocab_size=256_000, head_dim=256, max_position_embeddings=65_536, **TOKENS
)
SHAPES: dict[str, dict[str, Any]] = {
    "gemma-2b": GEMMA
    | dict(
        hidden_size=2048,
        intermediate_size=16_384,
        num_hidden_layers=18,
        num_attention_heads=8,
        num_key_value_heads=1,
    ),
    "gemma-3-4b": GEMMA
    | dict(
        vocab_size=262_208,
        hidden_size=2560,
        intermediate_size=10_240,
        num_hidden_layers=34,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=131_072,
        query_pre_attn_scalar=256,
        sliding_window=1024,
    ),
    "gemma-2-2b": GEMMA
    | dict(
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        query_pre_attn_scalar=256,
        sliding_window=4096,
    ),
    "gemma-3-27b": GEMMA
    | dict(
        vocab_size=262_208,
        hidden_size=5376,
        intermediate_size=21_504,
        num_hidden_layers=62,
        num_attention_heads=32,
        num_key_value_heads=16,
        head_dim=128,
        max_position_embeddings=131_072,
        query_pre_attn_scalar=168,
        sliding_window=1024,
    ),
}
SMALL: dict[str, Any] = dict(
    vocab_size=60,
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    head_dim=16,
    num_key_value_heads=1,
)
KINDS = (
    "forward",
    "bound",
    "obvious",
    "call",
    "bound_vs_jacobian",
    "collapse",
    "sketch",
    "exact",
    "token_influence",
)
# The numbers of tokens of each work, and how often it is timed, by model: what matters most first.
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "gemma-2b": {
        "forward": (2048, 8192, 32_768),
        "bound": (2048, 8192, 32_768),
        "obvious": (2048, 8192),
        "call": (8,),
        "bound_vs_jacobian": (256,),
        "collapse": (1024,),
        "sketch": (2048,),
        "token_influence": (1024,),
        "exact": (512,),
    },
    "gemma-3-4b": {
        "forward": (2048, 8192),
        "bound": (2048, 8192),
        "collapse": (1024,),
        "sketch": (2048,),
        "token_influence": (1024,),
        "exact": (427,),
    },
    "gemma-2-2b": {"forward": (2048,), "bound": (2048,)},
    "gemma-3-27b": {
        "forward": (2048, 8192),
        "bound": (2048, 8192),
        "collapse": (1024,),
        "sketch": (2048,),
        "token_influence": (1024,),
        "exact": (20,),
    },
}


def config(name: str, small: bool) -> Any:
    """The configuration of a shape; with `small` another of the same family, for the CPU."""
    shape = SHAPES[name]
    if small:
        kept = {key: shape[key] for key in TOKENS}
        windowed = {"sliding_window": 32, "query_pre_attn_scalar": 16}
        shape = kept | SMALL | ({} if name == "gemma-2b" else windowed)
    if name.startswith("gemma-3"):
        return Gemma3TextConfig(**shape)
    return GemmaConfig(**shape) if name == "gemma-2b" else Gemma2Config(**shape)


def ids_of(n: int) -> torch.Tensor:
    """A start and n − 1 random tokens, which every vocabulary has."""
    ids = torch.randint(3, 60, (n,), generator=torch.Generator().manual_seed(0))
    ids[0] = 2
    return ids


@torch.no_grad()
def obvious(plain: Any, ids: torch.Tensor) -> torch.Tensor:
    """The path bound as a user writes it: all patterns, and products of their means over heads."""
    patterns = plain(
        ids, use_cache=False, logits_to_keep=1, output_attentions=True
    ).attentions
    row = torch.eye(ids.shape[1], dtype=torch.float32, device=ids.device)[-1]
    for pattern in reversed(patterns):
        row = row @ pattern[0].mean(dim=0).float() + row
    return row.cpu()


def constant_collapse(model: Any, n: int) -> Any:
    """The collapse of n equal tokens, at all lengths."""
    sequence = GrowingSequence("constant", (7,) * n, (7, 8), prefix=(2,))
    return sl.collapse(
        model, sl.capture(model, sequence, keep="residuals", noise_lengths=0)
    )


class Subject:
    """A model of a shape on a device: its bridge, and plain models of the same weights, one with fused attention.

    With soft caps transformers has no fused attention.
    """

    def __init__(self, name: str, small: bool, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            inner = AutoModelForCausalLM.from_config(
                config(name, small), dtype=dtype, attn_implementation="eager"
            )
        inner = inner.eval().requires_grad_(False)
        self.device = device
        self.plain, self.eager = cast(Any, (shared_copy(inner), shared_copy(inner)))
        if name != "gemma-2-2b":
            self.plain.set_attn_implementation("sdpa")
        self.model: Any = bridge_around(inner, None, name)

    def verify(self) -> str:
        """Prove the bridge, so that the first measurement is timed without; how it attends.

        The prompt is longer than a window, and so has blocks of both kinds, and than those that are never fused.
        """
        n = 1 + max(window or LONGEST for window in windows(self.model))
        return sl.results.provenance(sl.path_bound(self.model, ids_of(n)))[
            "attention_implementation"
        ]

    def call(self, kind: str, n: int) -> Callable[[], Any]:
        """What is run for a work."""
        model = self.model
        ids = ids_of(n)
        products: dict[str, Any] = {"vjp_batch_size": BATCH}
        sketch: dict[str, Any] = {"norm": "frobenius", "method": "sketch"}
        calls: dict[str, Callable[[], Any]] = {
            "forward": lambda: self._forward(ids[None].to(self.device)),
            "bound": lambda: sl.path_bound(model, ids),
            "obvious": lambda: obvious(self.eager, ids[None].to(self.device)),
            # Which runs nothing.
            "call": lambda: sl.path_bound(model, ids, attention="uniform"),
            "bound_vs_jacobian": lambda: sl.bound_vs_jacobian(model, ids, **products),
            "sketch": lambda: sl.jacobian_norms(
                model, ids, n_probes=PROBES, **sketch, **products
            ),
            "exact": lambda: sl.jacobian_norms(model, ids, **products),
            "collapse": lambda: constant_collapse(model, n),
            "token_influence": lambda: sl.token_influence(model, ids, method="none"),
        }
        return calls[kind]

    def _forward(self, ids: torch.Tensor) -> None:
        with torch.no_grad():
            self.plain(ids, use_cache=False, logits_to_keep=1)


def say(**what: Any) -> None:
    print(MARK + json.dumps(what), flush=True)


def main() -> None:
    """Build the model and time its works: `python -m tests.cuda.works MODEL [--cpu]`."""
    name = sys.argv[1]
    small = "--cpu" in sys.argv
    device = "cpu" if small else "cuda"
    subject = Subject(name, small, device, torch.float32 if small else torch.bfloat16)
    subject.verify()
    sizes = dict.fromkeys(KINDS, (96,)) if small else SIZES[name]
    plain: dict[int, float] = {}
    for kind, lengths in sizes.items():
        # The first runs of a model set up libraries; the largest models take long.
        is_short = name == "gemma-2b" or kind in ("forward", "bound")
        times = 3 if is_short and not small else 1
        for n in lengths:
            try:
                say(kind=kind, n=n, **measured(subject, kind, n, device, plain, times))
            except Exception as error:  # such as out of memory
                say(kind=kind, n=n, failed=f"{type(error).__name__}: {error}"[:300])


def measured(
    subject: Subject,
    kind: str,
    n: int,
    device: str,
    plain: dict[int, float],
    times: int,
) -> dict[str, float]:
    """The median time and peak memory of a work, beside a plain fused forward pass of as many tokens."""
    if n not in plain:
        forward = subject.call("forward", n)
        forward()  # kernels are chosen and compiled at the first call
        plain[n] = statistics.median(timed(forward, 3, device)[0])
    runs, peak = timed(subject.call(kind, n), times, device)
    return {"seconds": statistics.median(runs), "peak": peak, "plain": plain[n]}


def timed(work: Callable[[], Any], times: int, device: str) -> tuple[list[float], int]:
    """Seconds of each run, and the most bytes that one run had alive beyond what was there before.

    Kernels run after the call that starts them, so each run waits for the last. On the CPU, memory is measured in a run
    of its own, which the profiler slows.
    """
    gc.collect()
    before = 0
    if device == "cuda":
        torch.cuda.empty_cache()  # so that one work does not starve the next
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    if device == "cuda":
        return seconds, torch.cuda.max_memory_allocated() - before
    return seconds, allocated(work)


def allocated(work: Callable[[], Any]) -> int:
    """The most bytes of tensors alive at once, of those that a work allocates on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        work()
    events = [
        event
        for event in run.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


if __name__ == "__main__":
    main()
