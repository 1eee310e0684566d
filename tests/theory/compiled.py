"""Compile the Triton kernel for a GPU that need not be there: `python -m tests.theory.compiled 90`.

The last line that it prints is a JSON list: for each program its registers, the bytes of stack of a thread (spilled
registers are there), the bytes of shared memory of a block of threads, and whether tensor cores multiply.
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
from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

from squashlens.theory import row_kernel

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KINDS: list[tuple[str, int, dict[str, bool]]] = [
    ("bf16", 256, {}), ("bf16", 256, {"WINDOWED": True}), ("bf16", 256, {"WINDOWED": True, "CAPPED": True}),
    ("bf16", 128, {}), ("fp16", 64, {"WINDOWED": True, "SUNK": True}), ("fp32", 64, {}),
]  # fmt: skip
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def compiled(
    kernel: Any, capability: int, dtype: str, size: int, options: dict[str, bool], rows: int
) -> dict[str, Any]:
    """What a program needs, as Triton compiles it when the kernel is called with such tensors."""
    shape = row_kernel.shape_of(DTYPES[dtype], rows)
    own = {"SUNK": False, "sinks": None} if kernel is row_kernel._normalize else {"ROWS": rows}
    fixed: dict[str, Any] = {"CAPPED": False, "WINDOWED": False, "SIZE": size, "WIDTH": size} | own
    fixed |= {name: shape[name] for name in ("BLOCK", "STEP")}
    fixed |= {name: value for name, value in options.items() if name in fixed}
    if fixed.get("SUNK"):
        del fixed["sinks"]
    pointers = {"queries": dtype, "keys": dtype, "sinks": "fp32", "rows": "fp32", "maxima": "fp32", "sums": "fp64",
                "found": "fp64"}  # fmt: skip
    kinds = dict.fromkeys(kernel.arg_names, "i32") | {"inner": "fp32", "outer": "fp32"}
    kinds |= {name: f"*{kind}" for name, kind in pointers.items()} | dict.fromkeys(fixed, "constexpr")
    kinds = {name: kinds[name] for name in kernel.arg_names}
    place = {name: (number,) for number, name in enumerate(kernel.arg_names)}
    aligned = {place[name]: [["tt.divisibility", 16]] for name, kind in kinds.items() if kind.startswith("*")}
    source = ASTSource(kernel, kinds, {place[name]: value for name, value in fixed.items()}, aligned)
    launch = {name: shape[name] for name in ("num_warps", "num_stages")}
    program = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program.asm["cubin"])
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    cores = re.search(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", program.asm["ptx"])
    return {
        "kernel": kernel.fn.__name__, "dtype": dtype, "size": size, **options, "rows": rows, "registers": int(found[1]),
        "stack": int(found[2]), "shared": program.metadata.shared, "tensor cores": cores is not None,
    }  # fmt: skip


def main() -> None:
    capability = int(sys.argv[1])
    programs = []
    for dtype, size, options in KINDS:
        programs.append(compiled(row_kernel._normalize, capability, dtype, size, options, 1))
        for rows in (1, row_kernel.ROWS):
            programs.append(compiled(row_kernel._multiply, capability, dtype, size, options, rows))
    print(json.dumps(programs))


if __name__ == "__main__":
    main()
