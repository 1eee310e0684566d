"""Collect the wheels for a machine without a network: `python -m tests.cuda.wheels --to FOLDER [--python 3.12]`.

They are squashlens itself, what it needs, and what its tests need, in the versions of this environment. PyTorch and the
libraries of CUDA are left out unless `--torch` is given, since a machine with a GPU mostly has them: they are some
gigabytes.
"""

import argparse
import re
import subprocess
import sys
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cuda.install import ROOT, TESTING

OF_TORCH = ("torch", "triton", "nvidia-", "cuda-")
MISSING = re.compile(r"No matching distribution found for (\S+)")
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)] + ["manylinux2014_x86_64"]


def needed(names: list[str], python: str) -> dict[str, str]:
    """What these packages need, directly and indirectly, with the version that is here, but not PyTorch's part."""
    found: dict[str, str] = {}
    left = [Requirement(name) for name in names]
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if name in found or name.startswith(OF_TORCH):
            continue
        found[name] = version(name)
        for text in distribution(name).requires or []:
            inner = Requirement(text)
            extras = [{**environment, "extra": extra} for extra in ("", *wanted.extras)]
            if inner.marker is None or any(inner.marker.evaluate(each) for each in extras):
                left.append(inner)
    return found


def fetch(pins: list[str], pip: list[str], chosen: list[str], to: Path) -> None:
    """Download wheels. A package that has none for the other machine is built here, if it is Python only."""
    left = list(pins)
    while left:
        command = [*pip, "download", "-q", "--no-deps", *chosen, *left]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        missing = MISSING.search(done.stderr)
        if missing is None or missing[1] not in left:
            raise SystemExit(f"pip download failed: {done.stderr.strip()[-400:]}")
        left.remove(missing[1])
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(to), missing[1]], check=True)
        name = missing[1].partition("==")[0].replace("-", "_")
        if not list(to.glob(f"{name}-*-none-any.whl")):
            raise SystemExit(f"{missing[1]} has no wheel for the other machine and is not Python only.")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("runs/wheels"), help="folder for the wheels")
    parser.add_argument("--python", default="3.12", help="Python of the other machine; default: 3.12")
    parser.add_argument("--torch", action="store_true", help="PyTorch and the libraries of CUDA too")
    options = parser.parse_args(arguments)
    options.to.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(options.to), str(ROOT)], check=True)
    wanted = needed(["squashlens", *TESTING], options.python)
    wanted.pop("squashlens")
    pins = [f"{name}=={number}" for name, number in sorted(wanted.items())]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    chosen = ["--only-binary=:all:", "--python-version", options.python, *platforms, "-d", str(options.to)]
    fetch(pins, pip, chosen, options.to)
    if options.torch:
        subprocess.run([*pip, "download", "-q", *chosen, f"torch=={version('torch').partition('+')[0]}"], check=True)
    size = sum(path.stat().st_size for path in options.to.glob("*.whl"))
    print(f"{len(list(options.to.glob('*.whl')))} wheels, {size / 1e6:.0f} MB, in {options.to}")


if __name__ == "__main__":
    main()
