"""All that is asked of a device while something is timed: CUDA through `torch.cuda`, the CPU through a profiler."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Timed:
    """Seconds of each run, and the most bytes that one run had alive beyond what was there before."""

    seconds: list[float]
    peak: int


class Cuda:
    name, dtype = "cuda", torch.bfloat16

    def about(self) -> dict[str, Any]:
        properties = torch.cuda.get_device_properties(0)
        return {
            "device": torch.cuda.get_device_name(0),
            "memory": int(properties.total_memory),
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
        }

    def free(self) -> None:
        """Give memory back that nothing uses, so that one work does not starve the next."""
        gc.collect()
        torch.cuda.empty_cache()

    def timed(self, work: Callable[[], Any], times: int) -> Timed:
        """Run a work several times. Kernels run after the call that starts them, so each run waits for the last."""
        self.free()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return Timed(seconds, torch.cuda.max_memory_allocated() - before)


class Cpu:
    """The CPU, for a rehearsal with small shapes. Memory is measured in a run of its own, which the profiler slows."""

    name, dtype = "cpu", torch.float32

    def about(self) -> dict[str, Any]:
        return {"device": "cpu", "memory": None, "cuda": None, "torch": torch.__version__}

    def free(self) -> None:
        gc.collect()

    def timed(self, work: Callable[[], Any], times: int) -> Timed:
        seconds = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        return Timed(seconds, allocated(work))


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
