"""Faults in prompts of unequal lengths and models left as they were that a test of this folder must find: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation("hooks left behind", "engine/hooking/hook.py", "stack.callback(_remove, known[name], added)  # before adding", "pass  # first", "test_nothing_changes.py"),
    Mutation("padding that looks like a token", "measure/unequal.py", '{"token": "", "token_id": -1}', '{"token": "", "token_id": 0}', "test_unequal.py"),
    Mutation("prompts in another order", "measure/unequal.py", 'assign_coords(n_tokens=("prompt", lengths))', 'assign_coords(n_tokens=("prompt", lengths[::-1]))', "test_unequal.py"),
    Mutation("the first prompt for all", "measure/unequal.py", "(model, prompt, **quiet)", "(model, each_of(given)[0], **quiet)", "test_unequal.py"),
    Mutation("the chance of one prompt for that of all", "records/joining.py", '"failure_probability": sum', '"failure_probability": max', "test_unequal.py"),
    Mutation("padding not said", "measure/unequal.py", '{"unequal_lengths": NOTE} if len(set(lengths)) > 1 else {}', "{}", "test_unequal.py"),
    Mutation("prompts checked when their turn comes", "engine/text/tokens.py", "    for row in rows:\n        tokenize(", "    for row in rows[:1]:\n        tokenize(", "test_unequal.py"),
    Mutation("padding drawn", "figures/drawing/inputs/selection.py", 'if "n_tokens" in result.coords:', "if False:", "test_unequal.py"),
)  # fmt: skip
