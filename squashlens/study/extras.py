"""Packages of the extras that studies use, imported only where they are needed."""

from importlib import import_module
from typing import Any

from squashlens.errors import InputError


def extra(package: str, what: str, name: str = "study") -> Any:
    """A package of the extra `name`, or an error that says what needs it and how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise InputError(
            f"{what} needs {package.partition('.')[0]}, which is not installed.",
            f'Install it: pip install "squashlens[{name}]".',
        ) from None
