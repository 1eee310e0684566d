"""The page of a squash map: one HTML file with its data, program and styles, which needs no network.

The content security policy allows exactly this program and these styles, by their digests, and no connection at all.
Tokens are data of the page. The program puts them into it as text, so that no token is read as markup.
"""

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files
from typing import Any

from squashlens.maps.payload import text_of

NO_PROGRAM = "This map is drawn by a program in the page. Allow scripts, or open the file in a browser."


@cache
def program() -> str:
    """The ES module, as it is in the package."""
    return files("squashlens.maps").joinpath("map.js").read_text(encoding="utf-8")


@cache
def styles() -> str:
    return files("squashlens.maps").joinpath("map.css").read_text(encoding="utf-8")


def section(data: dict[str, Any], *, theme: str = "auto", level: int = 2) -> str:
    """The map as a part of a page, with a heading of this level: styles, data and program."""
    return (
        f'<div class="sl-map" data-theme="{theme}" data-level="{level}"><noscript>{NO_PROGRAM}</noscript>'
        f'<script type="application/json">{text_of(data)}</script></div>\n'
        f"<style>{styles()}</style>\n"
        f'<script type="module">{program()}</script>'
    )


def page(data: dict[str, Any]) -> str:
    """The map as a page of its own."""
    policy = (
        f"default-src 'none'; script-src '{_digest(program())}'; style-src '{_digest(styles())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>Squash map – squashlens</title>\n"
        '<link rel="icon" href="data:,">\n</head>\n<body>\n'
        f"<main>{section(data, level=1)}</main>\n</body>\n</html>\n"
    )


def frame(whole: str, *, height: int = 1000) -> str:
    """A page as an iframe, which saved and exported notebooks keep. It is a site of its own, and reads nothing else."""
    return (
        f'<iframe title="Squash map" sandbox="allow-scripts" width="100%" height="{height}" '
        f'style="border: 0" srcdoc="{html.escape(whole)}"></iframe>'
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"
