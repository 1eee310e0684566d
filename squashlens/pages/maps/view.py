"""`squash_map` and the object that it returns, which shows itself in notebooks and writes itself as a page."""

import base64
import hashlib
import html
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import xarray as xr

from squashlens._typing import Bridge, Knockout, Method, Norm, SpansOfTokens
from squashlens.errors import InputError, SquashlensError
from squashlens.measure.registration import measurement
from squashlens.measure.squashing.jacobians.sketch import Estimation
from squashlens.pages.maps.cells import FEWER, joined, measure
from squashlens.pages.maps.given import find_query, of_result, refuse_options
from squashlens.pages.maps.payload import payload, text_of
from squashlens.run.captured import PromptOrCapture
from squashlens.saving.files import PAGES, require_output, write

NO_PROGRAM = "This map is drawn by a program in the page. Allow scripts, or open the file in a browser."


def program() -> str:
    """The ES module, as it is in the package."""
    return _file("map.js")


def styles() -> str:
    """The style sheet."""
    return _file("map.css")


def _file(name: str) -> str:
    return files("squashlens.pages.maps").joinpath(name).read_text(encoding="utf-8")


def section(*maps: dict[str, Any], theme: str = "auto", level: int = 2) -> str:
    """One map or several as a part of a page: data, styles and program, as HTML.

    Args:
        maps: the data of each map, of `payload`.
        theme: "auto", "light" or "dark".
        level: level of the headings.
    """
    parts = []
    for data in maps:
        parts.append(
            f'<div class="sl-map" data-theme="{theme}" data-level="{level}"><noscript>{NO_PROGRAM}</noscript>'
            f'<script type="application/json">{text_of(data)}</script></div>\n'
        )
    return f'{"".join(parts)}<style>{styles()}</style>\n<script type="module">{program()}</script>'


def _digest(text: str) -> str:
    """The digest of a program or a style sheet, as a page's security policy names it."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


# Measures one more query: of a result, a query and a function that is told the progress, a result with this query too.
Measure = Callable[[xr.Dataset, int, Callable[[float], None]], xr.Dataset]


class Cancelled(BaseException):
    """The user cancelled a measurement. It is no `Exception`, so that no function on the way catches it."""


class Worker:
    """Does what a widget's page asks for: measures one query at a time in a thread, and can be cancelled.

    `measure` gives a result with a further query, and `data_of` the data of the page for it. The widget's `result` and
    `data` are replaced when a query is done.
    """

    def __init__(
        self, widget: Any, measure: Measure, data_of: Callable[..., dict[str, Any]]
    ) -> None:
        self.widget = widget
        self.measure = measure
        self.data_of = data_of
        self.thread: threading.Thread | None = None  # measures the last query
        self.stop = threading.Event()  # set when the page cancels it

    def asked(self, _: Any, message: Any, __: Any) -> None:
        """Do what a message of the page asks for: ``{"kind": "measure", "query": 3}``, or ``{"kind": "cancel"}``."""
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind == "cancel":
            self.stop.set()
        elif kind == "measure" and self.thread is not None and self.thread.is_alive():
            self._say("error", "Another query is being measured. Cancel it, or wait.")
        elif kind == "measure":
            self.stop.clear()
            self.thread = threading.Thread(
                target=self._run, args=(message.get("query"),), daemon=True
            )
            self.thread.start()

    def _run(self, query: Any) -> None:
        """Measure a query, in the thread, and tell the page how it ended."""
        try:
            self.widget.result = self.measure(self.widget.result, query, self._progress)
            self.widget.data = self.data_of(self.widget.result, query)
            self._say("done", "")
        except Cancelled:
            self._say("cancelled", f"Query {query} was cancelled.")
        except SquashlensError as error:
            self._say("error", str(error))
        except Exception as error:  # nobody sees what a thread raises
            self._say("error", f"{type(error).__name__}: {error}")

    def _progress(self, share: float) -> None:
        """Tell the page the share that is done; end the measurement if it was cancelled."""
        if self.stop.is_set():
            raise Cancelled
        self.widget.send({"kind": "progress", "share": share})

    def _say(self, kind: str, text: str) -> None:
        self.widget.send({"kind": kind, "text": text})


@dataclass(frozen=True, repr=False)
class SquashMap:
    """A squash map. `result` is the Dataset whose numbers it shows."""

    result: xr.Dataset
    # Measures one more query, if there is a model.
    again: Measure | None = field(default=None, compare=False)
    # The query at which the map opens, if it is not that of the result's call.
    opened: int | None = field(default=None, compare=False)
    # The time that the measurement took, if it was made here.
    seconds: float | None = field(default=None, compare=False)

    def save(self, path: str | Path, beside: "SquashMap | None" = None) -> Path:
        """Write the map as one HTML file that needs no network, with the ending ``.html`` or ``.htm``.

        `beside` is a map to show beside it, for example of another prompt or model.
        """
        return write(
            require_output(path, PAGES, "path"), self.page(beside).encode("utf-8")
        )

    def page(self, beside: "SquashMap | None" = None) -> str:
        """The map as the text of an HTML page, with another `beside` it if one is given."""
        maps = [self._data()]
        if beside is not None:
            maps.append(beside._data())
        # Nothing but this program and these styles can run or be loaded.
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
            f"<main>{section(*maps, level=1)}</main>\n</body>\n</html>\n"
        )

    def section(self, headline: str) -> str:
        """The map as a part of another page, with what this page says of the prompt above it."""
        return section(self._data() | {"headline": headline})

    def live(self) -> Any:
        """The map as a notebook widget, in which a click measures a query that was not measured.

        It needs the extra ``notebook``, and a map that was made of a model. The widget's `result` has the queries that
        were measured since. Saved notebooks do not keep widgets, but the map itself.
        """
        if self.again is None:
            raise InputError(
                "This map was made of a result, so that there is no model to measure other queries with.",
                "Make it of a model and a prompt: `squashlens.squash_map(model, prompt).live()`.",
            )
        try:
            anywidget: Any = import_module("anywidget")
            traitlets: Any = import_module("traitlets")
        except ImportError as error:
            raise InputError(
                f"A live map needs anywidget, which cannot be imported ({error}).",
                'pip install "squashlens[notebook]"',
            ) from error

        class LiveMap(anywidget.AnyWidget):
            """A map in a notebook; `result` has the queries that were measured by clicks too."""

            _esm = program()
            _css = styles()
            data = traitlets.Dict().tag(sync=True)

        widget: Any = LiveMap(data=self._data())
        widget.result = self.result
        widget.worker = Worker(widget, self.again, self._data)
        widget.on_msg(widget.worker.asked)
        return widget

    def _data(
        self, result: xr.Dataset | None = None, opened: int | None = None
    ) -> dict[str, Any]:
        """The data of the map's page; or of a page for another result, with further queries, that opens at another."""
        if result is None:
            result = self.result
        if opened is None:
            opened = self.opened
        return payload(result, opened) | {"seconds": self.seconds}

    def _repr_html_(self) -> str:
        # Saved and exported notebooks keep an iframe. It is a site of its own, and reads nothing else.
        return (
            '<iframe title="Squash map" sandbox="allow-scripts" width="100%" height="1000" '
            f'style="border: 0" srcdoc="{html.escape(self.page())}"></iframe>'
        )

    def __repr__(self) -> str:
        sizes = self.result.sizes
        return f"<squash map: tokens {sizes['position']}, queries {sizes['query']}, layers {sizes['layer']}>"


@measurement(cheaper="Fewer n_probes= takes less, and method='none' least.")
def squash_map(
    model: Bridge | xr.Dataset,
    prompt: PromptOrCapture | None = None,
    *,
    query: int = -1,
    method: Method = "auto",
    n_probes: int = FEWER,
    norm: Norm = "spectral",
    knockout: Knockout | None = None,
    target: str | tuple[str, str] | None = None,
    spans: SpansOfTokens = None,
    seed: int = 0,
) -> SquashMap:
    """An interactive map of a prompt: how much each token influences every later one, from every layer.

    The prompt is a ribbon of tokens, coloured by their influence on the query; clicking a token makes it the query.
    Below it are all layers and tokens of this query with the strongest attention paths, influence by distance, and the
    distance of v and v* for the prompt with its last token repeated. Every number on the page is one of `result`.

    Path bound and null are measured for all queries in one forward pass; for prompts so long that the page could not
    hold them, for queries that are evenly spaced. Norms of the Jacobian, the readout of each layer and knockouts are
    measured for `query` alone. For more queries, measure `token_influence` and give its result.

    Args:
        model: the model to measure, as in `path_bound`; or a result of `token_influence` or of this function, perhaps
            opened from a file, and then neither a prompt nor other options than `query`.
        prompt: the prompt as text or token ids of shape (position), or a `capture` of it; a single prompt.
        query: position that the map opens at, the last by default (of a result, that of its call); negative values
            count from the end.
        method: way to compute the norms of the Jacobian of `query` from all layers, as in `jacobian_norms`; ``"none"``
            for no norms.
        n_probes, norm: as in `jacobian_norms`, but with 32 probes by default, which take half the time of 64.
        knockout: way to knock out each token in turn, as `kind` of `knockout_effect`: the map then says why the first
            answer is likelier than the other. By default tokens are knocked out if `target` is given.
        target: answers whose log-odds are followed, as in `knockout_effect`; by default the two likeliest next tokens.
        spans: spans that the ribbon can show as units, as in `jacobian_norms`; their colour is the largest number of
            their tokens.
        seed: random seed of a sketch; 0 by default.

    Returns:
        The map. Notebooks show it; ``save("map.html")`` writes it as one file that needs no network; ``result`` is the
        Dataset, with `path_bound`, `null`, `bound_over_null`, `jacobian` over (query, layer, position), NaN where not
        measured; `readout_token` and `readout_probability` over (query, layer, rank); what `knockout_effect` has, over
        (query, position); what `token_influence` has by layer; and for prompts of up to 1,024 tokens, over (traced),
        the strongest paths, the most important ways of every cell, and the attention of each head.

    Raises:
        InputError: several prompts, a prompt of one token, a query that does not exist, or a result of another
            function.
        CapacityError: the rows of a Jacobian do not fit into memory.
        UnsoundModelError: the model is not causal.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> found = sl.squash_map(model, "110 =")
    >>> found.save(tmp_path / "map.html").name
    'map.html'
    >>> sl.squash_map(sl.token_influence(model, "110 =", method="none"))
    <squash map: tokens 5, queries 5, layers 7>
    """
    if isinstance(model, xr.Dataset):
        refuse_options(prompt, method, n_probes, norm, knockout, target, spans, seed)
        result = of_result(model)
        return SquashMap(
            result, opened=None if query == -1 else find_query(result, query)
        )
    if prompt is None:
        raise InputError(
            "prompt= is missing.",
            "Give a prompt, or in place of the model a result of `token_influence`.",
        )
    way = Estimation(method=method, n_probes=n_probes, seed=seed)
    chosen: dict[str, Any] = {
        "norm": norm,
        "knockout": knockout,
        "target": target,
        "spans": spans,
    }
    began = time.perf_counter()
    result = measure(model, prompt, query=query, way=way, **chosen)

    def again(
        result: xr.Dataset, wanted: int, tick: Callable[[float], None]
    ) -> xr.Dataset:
        """The result with one more query, for a live map."""
        more = measure(
            model, prompt, query=wanted, alone=True, tick=tick, way=way, **chosen
        )
        return joined(result, more, wanted)

    return SquashMap(result, again, seconds=time.perf_counter() - began)
