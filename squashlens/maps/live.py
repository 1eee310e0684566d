"""A live map in a notebook: a click measures a query that was not measured, with progress and cancel.

The map is an anywidget. Measurements run in a thread, one at a time, so that the kernel can receive the request to
cancel. Saved notebooks do not keep widgets: show the map itself, which is a page, to keep it.
"""

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import xarray as xr

from squashlens.errors import InputError, SquashlensError
from squashlens.maps.page import program, styles

Measure = Callable[[xr.Dataset, int, Callable[[float], None]], xr.Dataset]
DataOf = Callable[[xr.Dataset, int | None], dict[str, Any]]


class Cancelled(BaseException):
    """The user cancelled a measurement. It is no `Exception`, so that no function on the way catches it."""


class Worker:
    """Does what a widget's page asks for: measures one query at a time in a thread, and can be cancelled."""

    def __init__(self, widget: Any, measure: Measure, data_of: DataOf) -> None:
        self.widget, self.measure, self.data_of = widget, measure, data_of
        self.thread: threading.Thread | None = None
        self.stop = threading.Event()

    def asked(self, _: Any, message: Any, __: Any) -> None:
        """A message of the page."""
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind == "cancel":
            self.stop.set()
        elif kind == "measure" and self.thread is not None and self.thread.is_alive():
            self._say("error", "Another query is being measured. Cancel it, or wait.")
        elif kind == "measure":
            self.stop.clear()
            self.thread = threading.Thread(target=self._run, args=(message.get("query"),), daemon=True)
            self.thread.start()

    def _run(self, query: Any) -> None:
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
        if self.stop.is_set():
            raise Cancelled
        self.widget.send({"kind": "progress", "share": share})

    def _say(self, kind: str, text: str) -> None:
        self.widget.send({"kind": kind, "text": text})


def widget(result: xr.Dataset, measure: Measure, data_of: DataOf) -> Any:
    """The widget of a map; `measure` gives the map's result with one more query, and reports its progress."""
    try:
        anywidget: Any = import_module("anywidget")
        traitlets: Any = import_module("traitlets")
    except ImportError as error:
        raise InputError(
            f"A live map needs anywidget, which cannot be imported ({error}).", 'pip install "squashlens[notebook]"'
        ) from error

    class LiveMap(anywidget.AnyWidget):
        """A map in a notebook; `result` has the queries that were measured by clicks too."""

        _esm = program()
        _css = styles()
        data = traitlets.Dict().tag(sync=True)

    made: Any = LiveMap(data=data_of(result, None))
    made.result = result
    made.worker = Worker(made, measure, data_of)
    made.on_msg(made.worker.asked)
    return made
