"""Faults that an oracle must find although it shares no code with what it checks: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation(
        "a norm that is not frozen",
        "measure/squashing/jacobians/jacobian.py",
        "    hooks = freezing(parts)\n",
        '    hooks = [hook for hook in freezing(parts) if hook.name != "freeze_norms"]\n',
        "test_closed_form.py",
    ),
    Mutation(
        "the derivative of another token's output",
        "measure/squashing/jacobians/rows.py",
        "    return reduce(torch.add, map(squared_frobenius, batches())).sqrt()",
        "    return reduce(torch.add, map(squared_frobenius, batches())).sqrt().flip(-1)",
        "test_closed_form.py",
    ),
    Mutation(
        "the gradient of another logit",
        "measure/squashing/audits/proxies.py",
        "torch.autograd.grad(logits.max(), leaf)",
        "torch.autograd.grad(leaf.sum(), leaf)",
        "test_programs.py",
    ),
)
