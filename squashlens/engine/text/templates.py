"""Render chat templates, after testing each one in a separate process.

A chat template is a program from the author of the model. Jinja's sandbox denies it files and Python objects, but does
not stop endless loops or texts that fill the memory. The test process renders the first message that a template is
used for, within `SECONDS` of computing and `MEMORY` bytes.
"""

import json
import subprocess
import sys
from typing import Any

from squashlens.errors import InputError, ModelAccessError

SECONDS = 10  # of computing; templates take milliseconds
MEMORY = 2 * 2**30
STARTING = 120  # seconds to import transformers on a busy machine

_CHILD = """
import json, sys
from transformers.utils.chat_template_utils import render_jinja_template
request = json.load(sys.stdin)
try:
    import resource, time
    resource.setrlimit(resource.RLIMIT_AS, (request["memory"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + request["seconds"],) * 2)
except ImportError:
    pass
try:
    render_jinja_template([request["turn"]], chat_template=request["template"], add_generation_prompt=True,
                          **request["tokens"])
    print("rendered")
except BaseException as error:
    print(f"{type(error).__name__}: {error}"[:300])
"""
_tested: set[str] = set()


def rendered(tokenizer: Any, turn: list[dict[str, str]]) -> str:
    """One turn in a tokenizer's chat template, which is tested in another process at its first use."""
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several templates by name
        template = template.get("default")
    if not isinstance(template, str):
        raise InputError("This model's chat template is not text.", "Use template='none', or correct its tokenizer.")
    if template not in _tested:
        tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        why = _error_of(template, {"turn": turn, "tokens": tokens})
        if why:
            raise _unusable(why)
        _tested.add(template)
    try:
        return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # the many errors of Jinja and of templates
        raise _unusable(f"{type(error).__name__}: {error}") from error


def _error_of(template: str, request: dict[str, Any]) -> str:
    """The error that a template raises in a test process; empty text if there is none."""
    request |= {"template": template, "memory": MEMORY, "seconds": SECONDS}
    unfinished = f"it did not finish within {SECONDS} seconds"
    try:
        done = subprocess.run(  # noqa: S603 - this Python with the program above
            [sys.executable, "-c", _CHILD], input=json.dumps(request), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, encoding="utf-8", timeout=STARTING + SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return unfinished
    return done.stdout.removeprefix("rendered\n") if done.returncode == 0 else unfinished


def _unusable(why: str) -> ModelAccessError:
    return ModelAccessError(
        f"The chat template of this model cannot be used: {' '.join(why.split())[:300]}.",
        "Use template='none', or correct the template in its tokenizer_config.json.",
    )
