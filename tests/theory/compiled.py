"""Compile the Triton kernel for a GPU that need not be there: `python -m tests.theory.compiled 90`.

`row_kernel.pushed_by_head` is called as on a GPU, with a driver that names the GPU and starts nothing. The last line
that is printed is a JSON list: for each program its registers, the bytes of stack of a thread (spilled registers are
there), the bytes of shared memory of a block of threads, and whether tensor cores multiply.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
from triton.runtime import jit  # pyright: ignore[reportMissingImports]

from squashlens.theory import row_kernel
from squashlens.theory.attention import Attention

SINKS = torch.zeros(2)
KINDS: list[tuple[torch.dtype, int, dict[str, Any]]] = [
    (torch.bfloat16, 256, {}), (torch.bfloat16, 256, {"window": 9}), (torch.bfloat16, 256, {"window": 9, "cap": 1.0}),
    (torch.bfloat16, 128, {}), (torch.float16, 64, {"window": 9, "sinks": SINKS}), (torch.float32, 64, {}),
]  # fmt: skip
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Driver:
    """All that is asked of a driver until a program is started."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target


def needs(program: Any) -> dict[str, Any]:
    """What a compiled program needs."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program.asm["cubin"])
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    cores = re.search(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", program.asm["ptx"])
    return {
        "registers": int(found[1]), "stack": int(found[2]), "shared": program.metadata.shared,
        "tensor cores": cores is not None,
    }  # fmt: skip


def main() -> None:
    triton.runtime.driver.set_active(Driver(int(sys.argv[1])))
    compiled: dict[tuple[str, int], dict[str, Any]] = {}

    def started_on(self: Any, grid: Any) -> Any:
        def start(*args: Any, **kwargs: Any) -> None:
            program = self.run(*args, grid=grid, warmup=True, **kwargs)
            compiled.setdefault((self.fn.__name__, kwargs.get("ROWS", 1)), {})[program.hash] = program

        return start

    jit.KernelInterface.__getitem__ = started_on
    printed = []
    for dtype, size, options in KINDS:
        compiled.clear()
        for n in (1, 300, 4096):  # Triton would compile other programs for 1, and for lengths that 16 divides
            for count in (1, 3):
                queries, keys = (torch.zeros(1, heads, n, size, dtype=dtype) for heads in (2, 1))
                rows = torch.ones(count, 1, 2, n, dtype=torch.float64)
                row_kernel.pushed_by_head(Attention(queries, keys, 1.0, **options), rows, slice(0, n))
        about = {"dtype": str(dtype).removeprefix("torch."), "size": size, "kind": [*options]}
        for (kernel, rows), programs in compiled.items():
            each = {"kernel": kernel, "rows": rows, "programs": len(programs)}
            printed.append(each | about | needs(next(iter(programs.values()))))
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
