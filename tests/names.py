"""The lists of public names: `make names` adds what is registered and not listed.

Public are the functions under `@measurement`, those of `squashlens/figures` under `@draws`, and those of
`squashlens/hooks` under `@validated`.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import squashlens as sl

ROOT = Path(__file__).parent.parent
LISTS = {  # the file with a list, the folders whose functions are in it, and the mark of their decorator
    "squashlens/__init__.pyi": (("measure", "pages"), "__measures__"),
    "squashlens/figures/__init__.py": (("figures",), "__draws__"),
    "squashlens/hooks/__init__.py": (("hooks",), "__validated__"),
}


def registered(folder: str, mark: str) -> dict[str, str]:
    """The module of each public function in a folder that has a mark."""
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in (ROOT / folder).rglob("[!_]*.py")
    ]
    return {
        name: module
        for module in sorted(names)
        for name, value in vars(import_module(module)).items()
        if hasattr(value, mark)
        and value.__module__ == module
        and not name.startswith("_")
    }


def missing(listing: str) -> dict[str, str]:
    """The module of each function that should be in a list."""
    folders, mark = LISTS[listing]
    public = sl if listing.endswith(".pyi") else getattr(sl, Path(listing).parent.name)
    listed = {*public.__all__, *(sl.attention_paths.__all__ if public is sl else ())}
    every = {
        name: at
        for folder in folders
        for name, at in registered(f"squashlens/{folder}", mark).items()
    }
    return {name: module for name, module in every.items() if name not in listed}


def main() -> None:
    for listing in LISTS:
        text = (ROOT / listing).read_text(encoding="utf-8")
        for name, module in missing(listing).items():
            here = (
                module.removeprefix("squashlens")
                if listing.endswith(".pyi")
                else module
            )
            text = text.replace("\nfrom ", f"\nfrom {here} import {name}\nfrom ", 1)
            text = text.replace("__all__ = [\n", f'__all__ = [\n    "{name}",\n', 1)
        (ROOT / listing).write_text(text, encoding="utf-8")
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--fix", "--select", "I,RUF022"], ["format"]):
        subprocess.run([ruff, *command, "--quiet", *LISTS], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
