"""The default tests under other instruction sets and thread counts: `python -m tests.processors [pytest arguments]`.

Each variant makes the numerical libraries sum in another order, as another make of processor would. A tolerance that
holds under one order only turns red here. Without arguments the whole default suite runs once for each variant.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VARIANTS: dict[str, dict[str, str]] = {
    "as it is": {},
    "PyTorch without vector instructions": {"ATEN_CPU_CAPABILITY": "default"},
    "PyTorch with AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "MKL with AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL with SSE4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "oneDNN with AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "oneDNN with SSE4.1": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "2 threads": {"SQUASHLENS_TEST_THREADS": "2"},
    "4 threads": {"SQUASHLENS_TEST_THREADS": "4"},
}


def main() -> None:
    """Run every variant, also after one has failed; the exit code is 1 if any did."""
    workers = ["-n", os.environ.get("WORKERS", "2"), "--dist", "worksteal"]
    chosen = sys.argv[1:] or ["tests", "squashlens"]
    default = [*workers, "-m", "not slow and not cuda and not browser"]
    red = False
    for name, variables in VARIANTS.items():
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", *default]
        print(name, flush=True)
        done = subprocess.run([*command, *chosen], cwd=ROOT, env=os.environ | variables)
        red = red or done.returncode != 0
    raise SystemExit(red)


if __name__ == "__main__":
    main()
