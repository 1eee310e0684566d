"""One-line breaks of the formulas. Each must turn a test red: `python -m tests.mutations` tries them all.

A mutation replaces text that occurs exactly once in a module, in a copy of the tree, and runs the tests
named beside it. One that stays green means the formula is not tested; it is listed and the exit code is 1.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parent.parent


# Hypothesis need not look for the smallest failing example.
QUICK = os.environ | {"SQUASHLENS_NO_SHRINKING": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Mutation:
    what: str
    module: str
    old: str
    new: str
    tests: str


BOUND, JACOBIAN = "tests/measure/test_bound.py", "tests/measure/test_jacobian.py"
PATHS, NORMS = "tests/theory/test_paths.py", "tests/theory/test_norms.py"
CAPTURE, PROOF, TOKENS = "tests/model/test_capture.py", "tests/model/test_proof.py", "tests/model/test_tokens.py"
UNCHANGED, RESULTS = "tests/measure/test_nothing_changes.py", "tests/test_results.py"
SENSITIVITY, SENTENCES = "tests/measure/test_sensitivity.py", "tests/reporting/test_sentences.py"

MUTATIONS = (
    # the path product
    Mutation("α transposed", "theory/paths.py", "... query, ... query key -> ... key", "... key, ... query key -> ... query", PATHS),
    Mutation("δ dropped", "theory/paths.py", "attention_scale * attended + weighted", "attention_scale * attended", PATHS),
    Mutation("gain dropped", "theory/paths.py", "weighted = gain * row", "weighted = row", PATHS),
    Mutation("1/β₁ on the residual too", "theory/paths.py", "attention_scale * attended + weighted", "attention_scale * (attended + weighted)", PATHS),
    Mutation("window off by one", "theory/paths.py", "key > query - window", "key >= query - window", PATHS),
    Mutation("null not normalised", "theory/paths.py", "seen / seen.sum(dim=-1, keepdim=True)", "seen", PATHS),
    Mutation("null sees the future", "theory/paths.py", "visible = key <= query", "visible = key >= query", PATHS),
    # the bound on a model
    Mutation("sum over heads for the mean", "model/capture.py", "float().mean(dim=1)", "float().sum(dim=1)", BOUND),
    Mutation("max over heads for the mean", "model/capture.py", "float().mean(dim=1)", "float().amax(dim=1)", BOUND),
    Mutation("captured blocks mixed up", "measure/bound.py", "head_mean(capture.patterns[b])", "head_mean(capture.patterns[blocks[0]])", CAPTURE),
    Mutation("blocks bottom-up", "measure/bound.py", "reversed(range(source, top))", "range(source, top)", BOUND),
    Mutation("a block too few", "measure/bound.py", "reversed(range(source, top))", "reversed(range(source + 1, top))", BOUND),
    Mutation("β₂ dropped", "measure/bound.py", "sigma_psi / beta2 + 1", "sigma_psi + 1", BOUND),
    Mutation("the MLP's residual dropped", "measure/bound.py", "sigma_psi / beta2 + 1", "sigma_psi / beta2", BOUND),
    Mutation("β₃ dropped", "measure/bound.py", "row / beta3 if", "row if", BOUND),
    Mutation("β₃ also without the final norm", "measure/bound.py", 'row / beta3 if to == "y" else row', "row / beta3", BOUND),
    Mutation("β₁ inverted", "measure/bound.py", "attention_scale=1 / beta1", "attention_scale=beta1", BOUND),
    Mutation("null ignores windows", "measure/bound.py", "uniform_attention(session.positions, w)", "uniform_attention(session.positions)", BOUND),
    Mutation("composition not halved", "measure/bound.py", "gain=0.5", "gain=1.0", BOUND),
    Mutation("layers upside down", "measure/bound.py", "torch.stack(rows[::-1])", "torch.stack(rows)", BOUND),
    # where things are read
    Mutation("hidden_states[-2] for the last residual", "model/anatomy.py", 'f"blocks.{top - 1}.hook_resid_post"', 'f"blocks.{top - 1}.hook_resid_pre"', CAPTURE),
    Mutation("y before its norm", "model/anatomy.py", '"ln_final.hook_out"', '"ln_final.hook_in"', JACOBIAN),
    Mutation("γ dropped from y", "model/anatomy.py", '"ln_final.hook_out"', '"ln_final.hook_normalized"', JACOBIAN),
    Mutation("a layer off by one", "model/anatomy.py", 'f"blocks.{layer}.hook_resid_pre"', 'f"blocks.{layer}.hook_resid_post"', CAPTURE),
    Mutation("window where there is none", "model/anatomy.py", "window if kind == SLIDING else None", "window", BOUND),
    # the Jacobian
    Mutation("Gram of the wrong side", "theory/norms.py", "[..., -1].clamp", "[..., 0].clamp", NORMS),
    Mutation("root dropped", "theory/norms.py", ".clamp(min=0).sqrt()", ".clamp(min=0)", NORMS),
    Mutation("sum for the sum of squares", "theory/norms.py", ".double().square().sum", ".double().abs().sum", NORMS),
    Mutation("cotangents of half length", "measure/jacobian.py", "torch.arange(start, start + size)] = 1", "torch.arange(start, start + size)] = 0.5", JACOBIAN),
    Mutation("query off by one", "measure/jacobian.py", "tensor[:, query]", "tensor[:, query - 1]", JACOBIAN),
    Mutation("last cotangents left out", "measure/jacobian.py", "range(0, d, chunk)", "range(0, d - chunk, chunk)", JACOBIAN),
    Mutation("Frobenius without its root", "measure/jacobian.py", "return total.sqrt()", "return total", JACOBIAN),
    Mutation("freezing that does nothing", "model/hooks.py", "lambda t: t.detach(), blocks)", "lambda t: t, blocks)", JACOBIAN),
    Mutation("freezing the first block only", "model/hooks.py", "range(n_blocks) if self.blocks is None", "range(1) if self.blocks is None", JACOBIAN),
    # the proof
    Mutation("logits not compared", "model/proof.py", 'pairs = [("logits", logits, truth.logits)]', "pairs = []", PROOF),
    Mutation("anything is close enough", "model/proof.py", "if difference <= allowed:", "if True:", PROOF),
    Mutation("dead hooks overlooked", "model/proof.py", "s for s, g in fired.items() if g is None", "s for s, g in fired.items() if g is not None and", PROOF),
    Mutation("foreign bridges trusted", "model/proof.py", "    if model not in _status:", "    if False:", PROOF),
    # tokens, hooks, results
    Mutation("two BOS pass", "model/tokens.py", "if found[0] == wanted or", "if found[0] >= wanted or", TOKENS),
    Mutation("BOS not prepended", "model/tokens.py", "lead = [bos_id(model)] * wanted", "lead = []", TOKENS),
    Mutation("hooks left behind", "model/hooks.py", "stack.callback(_remove, point, handle)", "pass", UNCHANGED),
    Mutation("stale hooks accepted", "model/capture.py", '"hooks": (self.ambient_hooks, tuple(ambient(model)))', '"hooks": (0, 0)', CAPTURE),
    Mutation("fingerprint blind to order", "model/fingerprint.py", "(place * 0x5851F42D4C957F2D | 1)", "1", RESULTS),
    # the comparison and what is said of it
    Mutation("ratio inverted", "measure/sensitivity.py", "(bound / null)", "(null / bound)", SENSITIVITY),
    Mutation("null is the model", "measure/sensitivity.py", 'attention="uniform", ', "", SENSITIVITY),
    Mutation("frozen is not frozen", "measure/sensitivity.py", 'freeze="attention", ', "", SENSITIVITY),
    Mutation("query token in the ranks", "measure/sensitivity.py", "reach - 1)", "reach)", SENSITIVITY),
    Mutation("Pearson for Spearman", "measure/sensitivity.py", 'method="spearman"', 'method="pearson"', SENSITIVITY),
    Mutation("below for above", "reporting/sentences.py", "(bound < truth).sum()", "(bound > truth).sum()", SENTENCES),
    Mutation("early for late", "reporting/sentences.py", "    if rho < 0:\n", "    if rho > 0:\n", SENTENCES),
)  # fmt: skip


def run_copied(tests: Sequence[str], mutation: Mutation | None = None) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the tree, broken by `mutation` if one is given."""
    with tempfile.TemporaryDirectory() as scratch:
        for part in ("squashlens", "tests"):
            shutil.copytree(ROOT / part, Path(scratch) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", scratch)
        if mutation is not None:
            module = Path(scratch) / "squashlens" / mutation.module
            text = module.read_text(encoding="utf-8")
            if text.count(mutation.old) != 1:
                raise SystemExit(f"{mutation.what}: its text stands {text.count(mutation.old)} times in the module.")
            module.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        # The copy comes first on the path, before the installed package.
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow and not cuda", *tests]
        return subprocess.run(command, cwd=scratch, capture_output=True, text=True, env=QUICK, timeout=900)


def goes_red(mutation: Mutation) -> bool:
    """Whether the tests named beside a mutation fail under it."""
    done = run_copied([mutation.tests], mutation)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutation.what}: the tests could not run.\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main() -> None:
    wanted = [m for m in MUTATIONS if len(sys.argv) < 2 or sys.argv[1] in m.what]
    untouched = run_copied(sorted({m.tests for m in wanted}))
    if untouched.returncode != 0:  # red for another reason proves nothing
        raise SystemExit(f"The tests are red without any mutation.\n{untouched.stdout[-2000:]}")
    with ThreadPoolExecutor(max_workers=2) as pool:
        verdicts = list(tqdm(pool.map(goes_red, wanted), total=len(wanted), desc="mutations"))
    survivors = [m for m, red in zip(wanted, verdicts, strict=True) if not red]
    for mutation in survivors:
        print(f"survived: {mutation.what} ({mutation.module}) under {mutation.tests}")
    print(f"{len(wanted) - len(survivors)} of {len(wanted)} mutations turned a test red")
    raise SystemExit(bool(survivors))


if __name__ == "__main__":
    main()
