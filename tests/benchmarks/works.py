"""The works that are timed, ours and what a user would do today. Each runs in a process of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GemmaConfig

import squashlens as sl
from tests.cuda.works import SHAPES, constant_collapse, ids_of

FOLDER = Path("runs/benchmarks")
SHAPE: dict[str, Any] = dict(
    hidden_size=512,
    intermediate_size=2048,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=65536,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
)


def folder(vocabulary: int = 512, blocks: int = 8, large: bool = False) -> Path:
    """A random Gemma, seeded, of d = 512 in float32 or with Gemma-2B's shape in bfloat16; kept for the next process."""
    path = FOLDER / f"gemma-{'2b-' * large}{blocks}-{vocabulary}"
    if not (path / "config.json").exists():
        torch.manual_seed(0)
        dtype = torch.bfloat16 if large else torch.float32
        shape = SHAPES["gemma-2b"] if large else SHAPE
        config = GemmaConfig(
            **shape | {"vocab_size": vocabulary, "num_hidden_layers": blocks}
        )
        AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(path)
    return path


def opened(**shape: Any) -> Any:
    return sl.load(
        folder(**shape),
        device="cpu",
        dtype="bfloat16" if "large" in shape else "float32",
    )


def bridge(**shape: Any) -> Any:
    model = opened(**shape)
    sl.path_bound(
        model, torch.tensor([2, 3, 4])
    )  # what is proved at first use is not what is timed
    return model


def plain(attention: str, **shape: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        folder(**shape), dtype="auto", attn_implementation=attention
    )
    return model.eval().requires_grad_(False)


Work = Callable[[], Any]


def bound(n: int, from_layer: int = 0, **shape: Any) -> Work:
    model, ids = bridge(**shape), ids_of(n)
    return lambda: sl.path_bound(model, ids, from_layer=from_layer)


def cached_patterns(n: int) -> Work:
    """TransformerLens keeps every pattern, then matrices are multiplied."""
    model, ids = bridge(), ids_of(n)

    def work() -> Any:
        with torch.no_grad():
            _, cache = model.run_with_cache(
                ids[None], names_filter=lambda name: name.endswith("hook_pattern")
            )
        product = torch.eye(n)
        for block in range(8):
            product = (
                2
                * (
                    cache[f"blocks.{block}.attn.hook_pattern"][0].mean(dim=0)
                    + torch.eye(n)
                )
            ) @ product
        return product[-1]

    return work


def plain_pass(n: int, **shape: Any) -> Work:
    """To the final normalization: on a CPU a readout of 256,000 rows in bfloat16 takes longer than all blocks."""
    model, ids = plain("sdpa", **shape).model, ids_of(n)[None]

    def work() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    return work


def collapse(n: int, **shape: Any) -> Work:
    model = bridge(**shape)
    return lambda: constant_collapse(model, n)


def two_passes_a_length(n: int, every: int = 16) -> Work:
    """Two forward passes for every sixteenth length; the page multiplies."""
    model = plain("sdpa")

    def work() -> None:
        with torch.no_grad():
            for k in range(every, n + 1, every):
                for m in (k, k + 1):
                    ids = torch.tensor([[2] + [7] * m])
                    model(ids, use_cache=False, output_hidden_states=True)

    return work


def frobenius(n: int, **options: Any) -> Work:
    model, ids = bridge(), ids_of(n)
    return lambda: sl.jacobian_norms(model, ids, norm="frobenius", **options)


def jacrev(n: int, chunk: int = 32) -> Work:
    model = plain("eager")
    start = model.get_input_embeddings()(ids_of(n)[None])

    def last(embeddings: torch.Tensor) -> torch.Tensor:
        return model.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state[
            0, -1
        ]

    return lambda: (
        torch.func.jacrev(last, chunk_size=chunk)(start)
        .square()
        .sum(dim=(0, -1))
        .sqrt()
    )


def load(**shape: Any) -> Work:
    folder(**shape)
    return lambda: opened(**shape)


def read(**shape: Any) -> Work:
    folder(**shape)
    return lambda: plain("sdpa", **shape)


def started(code: str) -> Work:
    """A new Python process, from its first import to its end."""
    return lambda: subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True
    )


def open_bundled() -> Work:
    return started("import squashlens as sl; sl.load('tiny-gemma')")


def open_by_libraries() -> Work:
    """What `load` cannot do without: the libraries, and the plain model."""
    source = str(Path(sl.__file__).parent / "example_models" / "tiny-gemma")
    return started(
        "import torch, transformers, transformer_lens\n"
        f"transformers.AutoModelForCausalLM.from_pretrained({source!r}, attn_implementation='eager')"
    )


def report() -> Work:
    page = str((FOLDER / "report.html").resolve())
    return started(f"import squashlens as sl; sl.report('tiny-gemma', out={page!r})")


def resident(key: str) -> float:
    """Megabytes of this process, as Linux counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1000
    raise RuntimeError(f"Linux says nothing of {key}.")


def main() -> None:
    """Run one work: its name, its arguments as JSON, how often."""
    torch.set_num_threads(2)
    name, arguments, times = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    work = globals()[name](**arguments)
    seconds, peak, result = [], 0.0, None
    for _ in range(times):
        Path("/proc/self/clear_refs").write_text("5")
        before, start = resident("VmRSS"), time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
        peak = max(peak, resident("VmHWM") - before)
    extra = (
        {}
        if not hasattr(result, "attrs")
        else sl.results.provenance(result).get("sketch", {})
    )
    print(json.dumps({"seconds": seconds, "peak": peak, "sketch": extra}))


if __name__ == "__main__":
    main()
