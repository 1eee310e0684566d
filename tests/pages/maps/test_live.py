"""The live map: the kernel alone, and the page with an object in place of the kernel; `test_lab` has both together."""

import json
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.pages.maps.view import program, styles

PROMPT = "110 ="


@pytest.fixture(scope="module")
def shown(tiny: Any) -> Any:
    """A map, which no widget of it changes."""
    return sl.squash_map(tiny, PROMPT)


@pytest.fixture
def live(shown: Any) -> Any:
    return told(shown)


def told(shown: Any) -> Any:
    """A widget that keeps what it says."""
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    made = shown.live()
    made.said = []
    made.send = lambda message, *_: made.said.append(message)
    return made


def ask(live: Any, message: Any) -> None:
    live.worker.asked(live, message, [])
    if live.worker.thread is not None:
        live.worker.thread.join()


def test_a_query_is_measured_and_joined(live: Any, shown: Any, tiny: Any) -> None:
    before = live.result.copy(deep=True)
    ask(live, {"kind": "measure", "query": 2})
    assert live.said[-1] == {"kind": "done", "text": ""}
    shares = [
        message["share"] for message in live.said if message["kind"] == "progress"
    ]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    norms = sl.jacobian_norms(tiny, PROMPT, query=2)
    np.testing.assert_allclose(
        live.result["jacobian"].sel(query=2, layer=0), norms, rtol=1e-4
    )
    for name in before.data_vars:
        if "query" in before[name].dims:
            others = [query for query in range(5) if query != 2]
            np.testing.assert_array_equal(
                live.result[name].sel(query=others), before[name].sel(query=others)
            )
    assert sl.results.provenance(live.result)["further_queries"] == [2]
    assert live.data["opened"] == 2
    assert shown.result.identical(
        before
    )  # the map that the widget was made of has what it had
    assert "Jacobian: measured for query 2, 4 only." in live.data["notes"]


def test_it_can_be_cancelled_and_goes_on(live: Any) -> None:
    before = live.result

    def cancel(message: Any, *_: Any) -> None:
        live.said.append(message)
        if message["kind"] == "progress":
            live.worker.asked(live, {"kind": "cancel"}, [])

    plain, live.send = live.send, cancel
    ask(live, {"kind": "measure", "query": 1})
    assert live.said[-1] == {"kind": "cancelled", "text": "Query 1 was cancelled."}
    assert live.result is before
    live.send = plain
    ask(live, {"kind": "measure", "query": 1})
    assert live.said[-1]["kind"] == "done"


def test_errors_are_shown(live: Any) -> None:
    for message in (
        {"kind": "measure", "query": 99},
        {"kind": "measure", "query": None},
        {"kind": "measure"},
    ):
        ask(live, message)
        assert live.said[-1]["kind"] == "error"
    said = len(live.said)
    for message in (None, [], {}, {"kind": "other"}):
        ask(live, message)
    assert len(live.said) == said


@pytest.mark.slow
def test_a_model_that_was_changed_since_is_not_joined() -> None:
    model = sl.load("tiny-gemma", device="cpu")
    live = told(sl.squash_map(model, PROMPT))
    with torch.no_grad():
        next(model.original_model.parameters()).mul_(1.01)
    ask(live, {"kind": "measure", "query": 1})
    assert "The model was changed since the map was made" in live.said[-1]["text"]


def once(function: Any) -> Any:
    """A hook that calls a function the first time."""
    called: list[Any] = []

    def hook(tensor: Any, hook: Any) -> None:
        if not called:
            called.append(hook)
            function()

    return hook


@pytest.mark.parametrize("used", ["under hooks", "in a call"])
def test_a_model_in_use_is_an_error_and_no_wait(
    used: str, live: Any, tiny: Any
) -> None:
    before = live.result

    def click(*_: Any) -> None:
        live.worker.asked(live, {"kind": "measure", "query": 1}, [])
        live.worker.thread.join(timeout=10)
        assert not live.worker.thread.is_alive()

    if used == "under hooks":
        with sl.applied(tiny, sl.hooks.freeze_attention()):
            click()
        assert "The model was changed since the map" in live.said[-1]["text"]
    else:
        with tiny.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", once(click))]):
            sl.path_bound(tiny, "1 =")
        assert "Another thread measures this model" in live.said[-1]["text"]
    assert live.said[-1]["kind"] == "error"
    assert live.result is before
    ask(live, {"kind": "measure", "query": 1})
    assert live.said[-1]["kind"] == "done"


@pytest.mark.browser
def test_the_pages_side(watched: Any, shown: Any) -> None:
    """With an object in place of the notebook's model, which keeps what is sent and tells what the kernel would."""
    one = watched()
    page = one.page
    page.set_content(
        f"<title>x</title><body data-jp-theme-light='false'><style>{styles()}</style><div id='here'></div>"
    )
    page.evaluate(
        """async ([program, data]) => {
          const heard = {};
          window.sent = [];
          window.stub = { data, get: () => window.stub.data, send: (message) => window.sent.push(message),
            on: (name, take) => { heard[name] = take; }, off: () => {}, tell: (name, given) => heard[name](given) };
          const url = URL.createObjectURL(new Blob([program], { type: 'text/javascript' }));
          (await import(url)).default.render({ model: window.stub, el: document.getElementById('here') });
        }""",
        [program(), json.loads(json.dumps(shown._data()))],
    )
    assert (
        page.locator(".sl-map[data-theme=dark]").count() == 2
    )  # JupyterLab's, and not the system's
    page.click("[data-start='2']")
    assert page.evaluate("document.activeElement.dataset.lmSuppressShortcuts") == "true"
    page.get_by_role("button", name="Measure it").click()
    assert page.evaluate("window.sent") == [{"kind": "measure", "query": 2}]
    page.evaluate("window.stub.tell('msg:custom', {kind: 'progress', share: 0.5})")
    assert page.locator("progress").evaluate("one => one.value") == 0.5
    page.get_by_role("button", name="Cancel").click()
    assert page.evaluate("window.sent.at(-1)") == {"kind": "cancel"}
    page.evaluate("window.stub.tell('msg:custom', {kind: 'error', text: '<b>No</b>'})")
    assert page.locator(".sl-live").inner_text().startswith("<b>No</b>")
    assert page.locator("progress").is_hidden()
    # The button that had the focus is gone, and the query has it.
    assert page.evaluate("document.activeElement.dataset.start") == "2"
    page.get_by_label("Colour").select_option("path_bound")
    page.click(".sl-more summary")
    page.get_by_label("Units").select_option("line")
    page.evaluate(
        "window.stub.data = {...window.stub.data, opened: 1}; window.stub.tell('change:data')"
    )
    assert (
        page.locator("[aria-selected=true]").get_attribute("data-start") == "0"
    )  # of the line with the query, 1
    assert "Query 1" in page.locator(".sl-status").inner_text()
    assert page.get_by_label("Colour").input_value() == "path_bound"
    assert page.locator(".sl-ribbon [role=option]").count() == 1
    assert one.said == []
