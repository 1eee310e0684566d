"""Install squashlens and what its tests need into a folder, with a CUDA build of PyTorch; standard library only.

A PyTorch that the machine's Python has already, and that sees the device, is used as it is. Everything else comes from
the package index, or from wheels that were carried along (`python3 -m tests.cuda.wheels`).
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTING = ("pytest", "pytest-timeout", "hypothesis", "beartype")
PROBE = "import torch; assert torch.cuda.is_available(); print(torch.__version__)"


class InstallError(Exception):
    """What could not be installed, and why."""


def installed(folder: Path, wheels: Path | None, seconds: float) -> str:
    """The Python of a virtual environment in the folder that has everything."""
    if sys.version_info < (3, 11):  # noqa: UP036 (this file is run by whatever Python the machine has)
        raise InstallError(f"This is Python {sys.version.split()[0]}; squashlens needs Python 3.11 or later.")
    if wheels is not None and not list(wheels.glob("squashlens-*.whl")):
        raise InstallError(f"{wheels} has no wheel of squashlens: `make wheels` writes them.")
    has_torch = _said([sys.executable, "-c", PROBE], 60) is not None
    python = folder / "venv" / "bin" / "python"
    shared = ["--system-site-packages"] if has_torch else []
    _run([sys.executable, "-m", "venv", *shared, str(folder / "venv")], seconds)
    _run([str(python), *pip(folder, wheels, has_torch)], seconds)
    version = _said([str(python), "-c", PROBE], 120)
    if version is None:
        raise InstallError("PyTorch was installed and sees no CUDA device. Without one, use --rehearse.")
    print(f"installed, with PyTorch {version}" + (" of this machine" if has_torch else ""), flush=True)
    return str(python)


def pip(folder: Path, wheels: Path | None, has_torch: bool) -> list[str]:
    """The arguments of `python` that install everything."""
    common = ["-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if wheels is not None:
        return [*common, "--no-index", "--find-links", str(wheels), "squashlens", *TESTING]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = folder / "constraints.txt"
    own = re.compile(r"torch(vision)?\b")  # the machine's own stay, and its torchvision matches its PyTorch
    kept.write_text("\n".join(line for line in lines if not (has_torch and own.match(line))) + "\n", encoding="utf-8")
    return [*common, "-c", str(kept), str(ROOT), *TESTING]


def _run(command: list[str], seconds: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise InstallError(f"{' '.join(command[:5])} … took longer than {seconds:.0f} s.") from None
    if done.returncode:
        raise InstallError(f"{' '.join(command[:5])} … failed: {' / '.join(done.stderr.strip().splitlines()[-3:])}")


def _said(command: list[str], seconds: float) -> str | None:
    """What a program printed, `None` if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
