"""Shapes of models with random weights, and the works that are timed on each: `python -m tests.cuda.works MODEL`.

Each line that begins with `MARK` is a JSON object for the process that waits: a work begins, is done, or failed. A
failure keeps the next works going, and so does running out of memory.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
)

import squashlens as sl
from squashlens.model.anatomy import dtype_of, n_blocks, width, windows
from squashlens.model.live import bridge_around
from squashlens.model.verify import shared_copy
from squashlens.run import budget
from squashlens.sequences import GrowingSequence
from squashlens.theory.attention import LONGEST
from tests.references import run_of

MARK, SAID = (
    "@squashlens ",
    "SQUASHLENS_SAID",
)  # the environment names a file for what is said
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
)
SMALL_TOO: dict[str, dict[str, int]] = {
    "gemma-2b": dict(num_key_value_heads=1),
    "gemma-3-4b": dict(
        num_key_value_heads=2, query_pre_attn_scalar=16, sliding_window=32
    ),
    "gemma-2-2b": dict(
        num_key_value_heads=2, query_pre_attn_scalar=16, sliding_window=32
    ),
    "gemma-3-27b": dict(
        num_key_value_heads=2, query_pre_attn_scalar=16, sliding_window=32
    ),
}
MODELS = tuple(SHAPES)


def config(name: str, small: bool) -> Any:
    """The configuration of a shape; with `small` another of the same family, for the CPU."""
    kinds = {
        "gemma-3": Gemma3TextConfig,
        "gemma-2-": Gemma2Config,
        "gemma-": GemmaConfig,
    }
    kind = next(kind for start, kind in kinds.items() if name.startswith(start))
    return kind(**SHAPES[name] | (SMALL | SMALL_TOO[name] if small else {}))


@dataclass(frozen=True)
class Work:
    """One thing that is timed: its kind, its number of tokens, and how often."""

    kind: str
    n: int
    times: int = 1

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.n} tokens"


def works(model: str, small: bool) -> list[Work]:
    """What is timed on a shape, what matters most first."""
    if small:
        kinds = (
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
        return [Work(kind, 96) for kind in kinds]
    if model == "gemma-2-2b":
        return [Work("forward", 2048, times=3), Work("bound", 2048, times=3)]
    long, one = {
        "gemma-2b": ((2048, 8192, 32_768), 512),
        "gemma-3-4b": ((2048, 8192), 427),
        "gemma-3-27b": ((2048, 8192), 20),
    }[model]
    found = [Work(kind, n, times=3) for n in long for kind in ("forward", "bound")]
    times = 1
    if model == "gemma-2b":  # whose first runs, which set up libraries, must not count
        times = 3
        found += [
            Work(kind, n, 3)
            for kind, n in (
                ("obvious", 2048),
                ("obvious", 8192),
                ("call", 8),
                ("bound_vs_jacobian", 256),
            )
        ]
    more = (
        ("collapse", 1024),
        ("sketch", 2048),
        ("token_influence", 1024),
        ("exact", one),
    )
    return [*found, *(Work(kind, n, times) for kind, n in more)]


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

    @property
    def weights(self) -> int:
        """Bytes of the weights."""
        return sum(
            p.numel() * p.itemsize for p in self.model.original_model.parameters()
        )

    def verify(self) -> str:
        """Prove the bridge, so that the first measurement is timed without; how it attends.

        The prompt is longer than a window, and so has blocks of both kinds, and than those that are never fused.
        """
        n = 1 + max(window or LONGEST for window in windows(self.model))
        return sl.results.provenance(sl.path_bound(self.model, ids_of(n)))[
            "attention_implementation"
        ]

    def call(self, work: Work) -> Callable[[], Any]:
        """What is run for a work."""
        ids, products = ids_of(work.n), {"vjp_batch_size": BATCH}
        calls: dict[str, Callable[[], Any]] = {
            "forward": lambda: self._forward(ids[None].to(self.device)),
            "bound": lambda: sl.path_bound(self.model, ids),
            "obvious": lambda: obvious(self.eager, ids[None].to(self.device)),
            "call": lambda: sl.path_bound(
                self.model, ids, attention="uniform"
            ),  # which runs nothing
            "bound_vs_jacobian": lambda: sl.bound_vs_jacobian(
                self.model, ids, **products
            ),
            "sketch": lambda: sl.jacobian_norms(
                self.model,
                ids,
                norm="frobenius",
                method="sketch",
                n_probes=PROBES,
                **products,
            ),
            "exact": lambda: sl.jacobian_norms(self.model, ids, **products),
            "collapse": lambda: constant_collapse(self.model, work.n),
            "token_influence": lambda: sl.token_influence(
                self.model, ids, method="none"
            ),
        }
        return calls[work.kind]

    def _forward(self, ids: torch.Tensor) -> None:
        with torch.no_grad():
            self.plain(ids, use_cache=False, logits_to_keep=1)

    def estimate(self, work: Work) -> int | None:
        """Bytes beyond the weights that squashlens expects of a work, `None` where it makes no estimate."""
        n, item = work.n, dtype_of(self.model).itemsize
        if work.kind == "forward":
            return budget.pass_bytes(run_of(self.model), 1, n)
        if work.kind == "bound":
            kept = n_blocks(self.model) * budget.queries_and_keys(
                run_of(self.model), 1, n
            )
            return kept + budget.pass_bytes(run_of(self.model), 1, n)
        if work.kind in ("sketch", "exact"):
            return budget.products_bytes(run_of(self.model), 1, n, BATCH)
        if work.kind == "collapse":
            streams = n * (n_blocks(self.model) + 2) * width(self.model) * item
            return budget.pass_bytes(run_of(self.model), 1, n + 2) + streams
        return None


def say(**what: Any) -> None:
    print(MARK + json.dumps(what), flush=True)
    if SAID in os.environ:
        with open(os.environ[SAID], "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--cpu", action="store_true", help="small shapes on the CPU")
    options = parser.parse_args(arguments)
    run(options.model, "cpu" if options.cpu else "cuda")


def run(model: str, device: str) -> None:
    """Build the model and run its works."""
    small = device == "cpu"
    say(begin="model")
    began = time.perf_counter()
    subject = Subject(model, small, device, torch.float32 if small else torch.bfloat16)
    attention = subject.verify()
    say(
        done="model",
        seconds=time.perf_counter() - began,
        weights=subject.weights,
        estimates=estimates(model),
        about=about(device),
        attention=attention,
    )
    plain: dict[int, float] = {}
    for work in works(model, small):
        say(begin=work.name)
        try:
            say(
                done=work.name,
                n=work.n,
                kind=work.kind,
                **measured(subject, work, device, plain),
            )
        except Exception as error:
            lines = str(error).splitlines() or ["no message"]
            say(
                failed=work.name,
                n=work.n,
                kind=work.kind,
                reason=f"{type(error).__name__}: {lines[0][:300]}",
            )


def about(device: str) -> dict[str, Any]:
    name, memory = device, None
    if device == "cuda":
        name, memory = (
            torch.cuda.get_device_name(0),
            int(torch.cuda.get_device_properties(0).total_memory),
        )
    return {
        "device": name,
        "memory": memory,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
    }


def measured(
    subject: Subject, work: Work, device: str, plain: dict[int, float]
) -> dict[str, Any]:
    """Time and peak memory of a work, beside a plain fused forward pass of as many tokens."""
    if work.n not in plain:
        forward = subject.call(Work("forward", work.n))
        forward()  # kernels are chosen and compiled at the first call
        plain[work.n] = statistics.median(timed(forward, 3, device)[0])
    runs, peak = timed(subject.call(work), work.times, device)
    seconds, expected = statistics.median(runs), subject.estimate(work)
    return {
        "seconds": seconds,
        "runs": runs,
        "peak": peak,
        "estimate": expected,
        "factor": peak / expected if expected else None,
        "plain": plain[work.n],
        "ratio": seconds / plain[work.n],
    }


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
    return (
        seconds,
        torch.cuda.max_memory_allocated() - before
        if device == "cuda"
        else allocated(work),
    )


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


def estimates(model: str) -> dict[str, Any]:
    """What the real shape is expected to need, from its sizes alone: nothing is allocated."""
    real = Subject(model, False, "meta", torch.bfloat16)
    found = {work.name: real.estimate(work) for work in works(model, False)}
    return {"weights": real.weights, "works": found}


if __name__ == "__main__":
    sys.exit(main())
