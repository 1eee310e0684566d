"""Chat templates are programs of whoever made the model: each is tried in a process of its own before it is used here.

Jinja's sandbox keeps a template from files and from Python's objects, but not from loops that never end or texts that
fill the memory. The process that tries it has `SECONDS` for each message and `MEMORY` bytes; it is started at the
first use and kept. What a template does there, it does here too: it sees the same message and tokens.
"""

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
from typing import Any

from squashlens.errors import InputError, ModelAccessError

SECONDS = 10.0  # for one message; templates take milliseconds
START = 120.0  # for importing transformers on a busy machine
MEMORY = 2 * 2**30

_CHILD = f"""
import json, sys
from transformers.utils.chat_template_utils import render_jinja_template
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
except ImportError:
    pass
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    try:
        render_jinja_template([asked["turn"]], chat_template=asked["template"], add_generation_prompt=True,
                              **asked["tokens"])
        said = ""
    except BaseException as error:
        said = f"{{type(error).__name__}}: {{error}}"[:300]
    print(json.dumps(said), flush=True)
"""


class _Trier:
    """A process that renders templates, and a thread that reads what it says."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - this Python with the program above
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.said: "queue.Queue[str]" = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.answer(START)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.said.put(line)
        self.said.put("")  # the process has ended

    def answer(self, seconds: float) -> str:
        """What the process says next; refused if it says nothing in time."""
        try:
            line = self.said.get(timeout=seconds)
        except queue.Empty:
            return f"it was not done after {seconds:g} seconds"
        return str(json.loads(line)) if line else "the process that tried it ended"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


_lock = threading.Lock()
_trier: _Trier | None = None


def rendered(tokenizer: Any, turn: list[dict[str, str]]) -> str:
    """One turn in a tokenizer's chat template, tried elsewhere first."""
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several by name
        template = template.get("default")
    if not isinstance(template, str):
        raise InputError("This model's chat template is no text.", "Use template='none', or correct its tokenizer.")
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    why = _tried({"template": template, "turn": turn, "tokens": tokens})
    if why:
        raise ModelAccessError(
            f"The chat template of this model cannot be used: {' '.join(why.split())}.",
            "Use template='none', or correct the template in its tokenizer_config.json.",
        )
    return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))


def _tried(asked: dict[str, Any]) -> str:
    """What is wrong with a template, nothing if nothing is."""
    global _trier
    with _lock:
        if _trier is None or _trier.process.poll() is not None:
            _trier = _Trier()
            atexit.register(_trier.close)
        try:
            print(json.dumps(asked), file=_trier.process.stdin, flush=True)
            why = _trier.answer(SECONDS)
        except BrokenPipeError:
            why = "the process that tried it ended"
        if why.startswith(("it was not", "the process")):
            _trier.close()
            _trier = None
        return why
