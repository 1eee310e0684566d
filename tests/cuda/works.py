"""Run the works of one model in this process, and say after each what it took: `python -m tests.cuda.works …`.

Each line that begins with `MARK` is a JSON object for the process that waits: a work begins, is done, or failed. A
failure keeps the next works going, and so does running out of memory.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

MARK = "@squashlens "


def say(**what: Any) -> None:
    print(MARK + json.dumps(what), flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--cpu", action="store_true", help="small shapes on the CPU")
    options = parser.parse_args(arguments)
    from tests.cuda import seam

    run(options.model, seam.Cpu() if options.cpu else seam.Cuda())


def run(model: str, device: Any) -> None:
    """Build the model and run its works."""
    from tests.cuda.shapes import Subject, works

    small = device.name == "cpu"
    say(begin="model")
    began = time.perf_counter()
    subject = Subject(model, small, device.name, device.dtype)
    attention = subject.verify()
    say(
        done="model", seconds=time.perf_counter() - began, weights=subject.weights, estimates=estimates(model),
        about=device.about(), attention=attention,
    )  # fmt: skip
    plain: dict[int, float] = {}
    for work in works(model, small):
        say(begin=work.name)
        try:
            say(done=work.name, n=work.n, kind=work.kind, **timed(subject, work, device, plain))
        except Exception as error:
            lines = str(error).splitlines() or ["no message"]
            say(failed=work.name, n=work.n, kind=work.kind, reason=f"{type(error).__name__}: {lines[0][:300]}")
        device.free()


def timed(subject: Any, work: Any, device: Any, plain: dict[int, float]) -> dict[str, Any]:
    """Time and peak memory of a work, beside a plain fused forward pass of as many tokens."""
    from tests.cuda.shapes import Work

    if work.n not in plain:
        forward = subject.call(Work("forward", work.n))
        forward()  # kernels are chosen and compiled at the first call
        plain[work.n] = statistics.median(device.timed(forward, 3).seconds)
    found = device.timed(subject.call(work), work.times)
    seconds, expected = statistics.median(found.seconds), subject.estimate(work)
    return {
        "seconds": seconds, "runs": found.seconds, "peak": found.peak, "estimate": expected,
        "factor": found.peak / expected if expected else None, "plain": plain[work.n],
        "ratio": seconds / plain[work.n],
    }  # fmt: skip


def estimates(model: str) -> dict[str, Any]:
    """What the real shape is expected to need, from its sizes alone: nothing is allocated."""
    import torch

    from tests.cuda.shapes import Subject, works

    real = Subject(model, False, "meta", torch.bfloat16)
    found = {work.name: real.estimate(work) for work in works(model, False)}
    return {"weights": real.weights, "works": found}


if __name__ == "__main__":
    sys.exit(main())
