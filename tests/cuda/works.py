"""Run the works of one model in this process, and say after each what it took: `python -m tests.cuda.works …`.

Each line that begins with `MARK` is a JSON object for the process that waits: a work begins, is done, or failed. A
failure keeps the next works going, and so does running out of memory.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.cuda.shapes import Subject, Work, works

MARK = "@squashlens "


def say(**what: Any) -> None:
    print(MARK + json.dumps(what), flush=True)


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
        done="model", seconds=time.perf_counter() - began, weights=subject.weights, estimates=estimates(model),
        about=about(device), attention=attention,
    )  # fmt: skip
    plain: dict[int, float] = {}
    for work in works(model, small):
        say(begin=work.name)
        try:
            say(done=work.name, n=work.n, kind=work.kind, **measured(subject, work, device, plain))
        except Exception as error:
            lines = str(error).splitlines() or ["no message"]
            say(failed=work.name, n=work.n, kind=work.kind, reason=f"{type(error).__name__}: {lines[0][:300]}")


def about(device: str) -> dict[str, Any]:
    name, memory = device, None
    if device == "cuda":
        name, memory = torch.cuda.get_device_name(0), int(torch.cuda.get_device_properties(0).total_memory)
    return {"device": name, "memory": memory, "cuda": torch.version.cuda, "torch": torch.__version__}


def measured(subject: Subject, work: Work, device: str, plain: dict[int, float]) -> dict[str, Any]:
    """Time and peak memory of a work, beside a plain fused forward pass of as many tokens."""
    if work.n not in plain:
        forward = subject.call(Work("forward", work.n))
        forward()  # kernels are chosen and compiled at the first call
        plain[work.n] = statistics.median(timed(forward, 3, device)[0])
    runs, peak = timed(subject.call(work), work.times, device)
    seconds, expected = statistics.median(runs), subject.estimate(work)
    return {
        "seconds": seconds, "runs": runs, "peak": peak, "estimate": expected,
        "factor": peak / expected if expected else None, "plain": plain[work.n], "ratio": seconds / plain[work.n],
    }  # fmt: skip


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
    return seconds, torch.cuda.max_memory_allocated() - before if device == "cuda" else allocated(work)


def allocated(work: Callable[[], Any]) -> int:
    """The most bytes of tensors alive at once, of those that a work allocates on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        work()
    events = [event for event in run.profiler.kineto_results.events() if event.name() == "[memory]"]
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
