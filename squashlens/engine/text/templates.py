"""Render chat templates, after testing each one in a separate process.

A chat template is a program from the author of the model. Jinja's sandbox denies it files and Python objects, but does
not stop endless loops or texts that fill the memory. The test process has `SECONDS` for each message and `MEMORY`
bytes. It renders the same message and tokens, starts at the first use, and is kept for later ones.
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

SECONDS = 10.0  # time limit for one message; templates take milliseconds
START = 120.0  # time limit for importing transformers on a busy machine
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
    request = json.loads(line)
    try:
        render_jinja_template([request["turn"]], chat_template=request["template"], add_generation_prompt=True,
                              **request["tokens"])
        message = ""
    except BaseException as error:
        message = f"{{type(error).__name__}}: {{error}}"[:300]
    print(json.dumps(message), flush=True)
"""


class _TestProcess:
    """A process that renders templates, and a thread that reads its answers."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - this Python with the program above
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.answers: "queue.Queue[str]" = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.answer(START)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.answers.put(line)
        self.answers.put("")  # the process has ended

    def answer(self, seconds: float) -> str:
        """The next answer of the process: an error message, or empty text if the template works."""
        try:
            line = self.answers.get(timeout=seconds)
        except queue.Empty:
            return f"it did not finish within {seconds:g} seconds"
        return str(json.loads(line)) if line else "the test process ended"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


_lock = threading.Lock()
_process: _TestProcess | None = None


def rendered(tokenizer: Any, turn: list[dict[str, str]]) -> str:
    """One turn in a tokenizer's chat template, which is tested in another process first."""
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several templates by name
        template = template.get("default")
    if not isinstance(template, str):
        raise InputError("This model's chat template is not text.", "Use template='none', or correct its tokenizer.")
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    why = _error_of({"template": template, "turn": turn, "tokens": tokens})
    if why:
        raise ModelAccessError(
            f"The chat template of this model cannot be used: {' '.join(why.split())}.",
            "Use template='none', or correct the template in its tokenizer_config.json.",
        )
    return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))


def _error_of(request: dict[str, Any]) -> str:
    """The error that a template raises in the test process; empty text if there is none."""
    global _process
    with _lock:
        if _process is None or _process.process.poll() is not None:
            _process = _TestProcess()
            atexit.register(_process.close)
        try:
            print(json.dumps(request), file=_process.process.stdin, flush=True)
            why = _process.answer(SECONDS)
        except BrokenPipeError:
            why = "the test process ended"
        if why.startswith(("it did not", "the test process")):
            _process.close()
            _process = None
        return why
