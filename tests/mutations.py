"""One-line breaks of the formulas. Each must turn a test red: `python -m tests.mutations` tries them all, and with a
word those whose name or module has it.

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


NOISE, POSITIONS = "tests/measure/test_noise.py", "tests/model/test_positions.py"
BOUND, JACOBIAN = "tests/measure/test_bound.py", "tests/measure/test_jacobian.py"
PATHS, NORMS, LANCZOS = "tests/theory/test_paths.py", "tests/theory/test_norms.py", "tests/theory/test_lanczos.py"
CAPTURE, PROOF, TOKENS = "tests/model/test_capture.py", "tests/model/test_proof.py", "tests/model/test_tokens.py"
START, NATIVE = "tests/model/test_start.py", "tests/model/test_native.py"
COMPLETE, LOAD = "tests/model/test_complete.py", "tests/model/test_load.py"
UNCHANGED, RESULTS = "tests/measure/test_nothing_changes.py", "tests/test_results.py"
WALKS, PATHTOOLS = "tests/theory/test_walks.py", "tests/measure/test_walks.py"
DISTANCES, PROMPTS, PASSES = "tests/theory/test_distances.py", "tests/test_prompts.py", "tests/model/test_passes.py"
COLLAPSE, MECHANISM = "tests/measure/test_collapse.py", "tests/measure/test_mechanism.py"
INTERVENTIONS = "tests/model/test_interventions.py"
PRECISION, TOKENISATION = "tests/measure/test_precision.py", "tests/measure/test_tokenisation.py"
TOKENPICTURES = "tests/figures/test_tokenisation_figures.py"
ACCURACY, COMPARE, WINDOWS = (f"tests/measure/test_{name}.py" for name in ("accuracy", "compare", "windows"))
PRESCRIBE, JOURNAL = "tests/measure/test_prescribe.py", "tests/test_journal.py"
TASKS, READING = "tests/tasks/test_tasks.py", "tests/tasks/test_reading.py"
TABLE, ECHO = "tests/tasks/test_answer_table.py", "tests/tasks/test_echo.py"
ANSWERS, BEHAVE, PROBE = (f"tests/measure/test_{name}.py" for name in ("answers", "behave", "probe"))
FILES, FOREIGN, ERRORS = "tests/test_files.py", "tests/test_foreign.py", "tests/test_errors.py"
PAGE = "tests/reporting/test_page.py"
ASKING = "tests/measure/test_asking.py"
RIDGE, VERDICTS = "tests/theory/test_ridge.py", "tests/measure/test_verdicts.py"
JOINED, GENERATE, HOSTED = (
    "tests/measure/test_collapse_vs_readout.py",
    "tests/model/test_generate.py",
    "tests/test_hosted.py",
)
STATEMENTS, SHARES = "tests/theory/test_statements.py", "tests/measure/test_shares_and_counts.py"
LAB, LABFITS = "tests/synthetic/test_forward.py", "tests/synthetic/test_convergence.py"
CHANGEPICTURES = "tests/figures/test_change_figures.py"
REFERENCE, QUANTISED = "tests/model/test_reference.py", "tests/model/test_quantised.py"
LOCALMAPS, LOCAL = "tests/model/test_local.py", "tests/measure/test_local.py"
HOOKS, FREEZE = "tests/model/test_hooks.py", "tests/model/test_freeze.py"
EXACTLY, SIGHT = "tests/measure/test_certificates.py", "tests/model/test_sight.py"
EDGES, CERTIFIED = "tests/theory/test_edges.py", "tests/measure/test_certified.py"
AUDIT, NEEDLE, RANKS = "tests/measure/test_audit.py", "tests/measure/test_needle.py", "tests/theory/test_ranks.py"
TRENDS = "tests/theory/test_trends.py"
SEPARATORS, SAYS = "tests/measure/test_separators.py", "tests/reporting/test_collapse_sentences.py"
ATTENTION, STREAMED = "tests/model/test_attention.py", "tests/model/test_streamed.py"
REGISTRY = "tests/model/test_registry.py"
REPLAY, BUDGET = "tests/model/test_replay.py", "tests/model/test_budget.py"
SENSITIVITY, SENTENCES = "tests/measure/test_sensitivity.py", "tests/reporting/test_sentences.py"

MUTATIONS = (
    # attention that is not written down
    Mutation("the next token is seen", "model/attention.py", ".triu(1)", ".triu(2)", ATTENTION),
    Mutation("a window one too long", "model/attention.py", "(behind >= self.window)", "(behind > self.window)", ATTENTION),
    Mutation("keys of the window not reached", "model/attention.py", "max(0, start - self.window + 1)", "max(0, start - self.window + 2)", ATTENTION),
    Mutation("a cap of another height", "model/attention.py", "logits.mul_(self.cap)", "logits.mul_(1.0)", ATTENTION),
    Mutation("sinks left out of the softmax", "model/attention.py", "torch.cat([logits, sink], dim=-1)", "torch.cat([logits, sink - 1e9], dim=-1)", ATTENTION),
    Mutation("heads summed in a row product", "model/attention.py", "self.pushed_by_head(flat).mean(dim=2)", "self.pushed_by_head(flat).sum(dim=2)", ATTENTION),
    Mutation("rows behind the last one skipped", "model/attention.py", "int(places[-1]) + 1) if", "int(places[-1])) if", ATTENTION),
    Mutation("a kernel that writes the pattern", "model/attention.py", "is_causal=attention.mask is None", "is_causal=False", ATTENTION),
    Mutation("softmax without its derivative", "model/pullback.py", "pulled -= weights[:, :, None] * pulled.sum(dim=-1, keepdim=True)", "pulled -= 0 * pulled.sum(dim=-1, keepdim=True)", ATTENTION),
    Mutation("the cap's derivative dropped", "model/pullback.py", 'pulled *= rearrange(slope, "p c e j k -> p c 1 (e j) k")', "pulled *= 1", ATTENTION),
    Mutation("keys of each cotangent mixed", "model/pullback.py", "(pulled.mT @ (asking * attention.scale)", "(pulled.flip(2).mT @ (asking * attention.scale)", ATTENTION),
    Mutation("streams not frozen", "model/streamed.py", "mixed(attention, value, stream.frozen)", "mixed(attention, value, False)", REPLAY),
    Mutation("hooks inside attention overlooked", "model/streamed.py", "blind = [name for name in standing if name not in proof.live]", "blind = []", STREAMED),
    Mutation("watched points that are silent", "model/streamed.py", "(points[site].name or site) not in proof.live]", "(points[site].name or site) == 0]", STREAMED),
    Mutation("any mask taken for a window", "model/streamed.py", "if not bool((shown == seen).all()):", "if False:", STREAMED),
    Mutation("streaming believed untried", "model/streamed.py", "not (a.double() - b.double()).abs().max().item() <= allowed", "False", STREAMED),
    Mutation("the model left patched", "model/streamed.py", 'own.pop("forward", None)', "pass", STREAMED),
    Mutation("the null's window forgotten", "theory/paths.py", "seen.clamp(max=self.window)", "seen", PATHS),
    Mutation("the null's window one short", "theory/paths.py", "(-n) % w + w))", "(-n) % w + w))[..., :-1].nan_to_num() if False else torch.nn.functional.pad(rows * 0.5, (0, (-n) % w + w))", PATHS),
    Mutation("another row read in the top block", "model/replay.py", "else left[:, rows]", "else left[:, [rows[0] - 1]]", REPLAY),
    Mutation("one row taken untried", "model/replay.py", "return bool((found.double() - truth.double()).abs().max() <= allowed)", "return True", REPLAY),
    Mutation("blocks replayed under a user's hook", "model/replay.py", "if ambient(model) else why_not(model, sites)", "if False else why_not(model, sites)", REPLAY),
    Mutation("positions repeated in the wrong place", "measure/_rows.py", "batch[:, :, start:stop]", "batch[:, :, : stop - start]", JACOBIAN),
    Mutation("an interval of one deviation", "theory/norms.py", "float(stats.t.ppf(0.975, k - 1)) * samples.std(dim=0)", "samples.std(dim=0)", NORMS),
    Mutation("an estimate that forgets what is kept", "model/budget.py", "kept = n_blocks(model) * queries_and_keys(model, prompts, n)", "kept = 0", BUDGET),
    Mutation("another layer from the shelf", "model/shelf.py", 'entry, path = self.entries[number], self._file(number)', 'entry, path = self.entries[min(self.entries)], self._file(min(self.entries))', CAPTURE),
    Mutation("a weight below float32 taken for none", "model/dissection.py", "pattern.double().clamp(min=torch.finfo(torch.float32).tiny)", "pattern.double()", CERTIFIED),
    Mutation("another layer from the shelf", "model/shelf.py", 'return load_file(self._file(number))["tensor"]', 'return load_file(self._file(self.numbers[0]))["tensor"]', CAPTURE),
    # the measured bound
    Mutation("key term without its weight", "theory/edges.py", '"out h c, i h c -> i h out") * alpha[:, :, None]', '"out h c, i h c -> i h out")', EDGES),
    Mutation("values not relative to the mean", "theory/edges.py", "away = from_top - einsum", "away = from_top + 0 * einsum", EDGES),
    Mutation("deviation formed directly", "theory/edges.py", "    from_top = by_head[:, None] - by_head[heads, top][:, :, None]\n", "    from_top = by_head[:, None] - 0 * by_head[heads, top][:, :, None]\n", EDGES),
    Mutation("sink forgotten", "theory/edges.py", "left.abs() > ROUNDING", "left.abs() > 1", EDGES),
    Mutation("query term dropped", "theory/edges.py", "moved[here] += self.query_rows[query]", "moved[here] += 0 * self.query_rows[query]", EDGES),
    Mutation("residual dropped", "theory/edges.py", "found[here] += self.direct[query]", "found[here] += 0 * self.direct[query]", EDGES),
    Mutation("S not undone", "theory/edges.py", "return spectral_norms(torch.linalg.solve_triangular(self.root, closing.mT, upper=False))", "return spectral_norms(closing.mT)", EDGES),
    Mutation("excess of the other tokens forgotten", "theory/edges.py", "maps.excess[query] * before, norms", "before, norms", EDGES),
    Mutation("pairs of heads counted once", "theory/edges.py", "twice = (1 if h == k else 2) * alpha[h]", "twice = alpha[h]", EDGES),
    Mutation("heads never together", "theory/edges.py", "torch.minimum(torch.minimum(by_head, together)", "torch.minimum(torch.minimum(by_head, by_head)", EDGES),
    Mutation("key rows of the wrong query", "model/dissection.py", "cotangents[place, heads, 0, heads, j, : j + 1] = 1", "cotangents[place, heads, 0, heads, 0, : j + 1] = 1", CERTIFIED),
    Mutation("heads to groups by remainder", "model/dissection.py", "key (group each) ...", "key (each group) ...", CERTIFIED),
    Mutation("final norm left out", "measure/certified.py", "ends: list[Target] = [*bounds[1:-1], to]", "ends: list[Target] = [*bounds[1:-1], top]", CERTIFIED),
    Mutation("groups from the bottom", "measure/certified.py", "sorted({source, *range(top, source, -group)})", "sorted({top, *range(source, top, group)})", CERTIFIED),
    Mutation("inflation per block, not in all", "measure/certified.py", "(1 + INFLATION) ** (1 / self.steps) - 1", "INFLATION", CERTIFIED),
    Mutation("freezing forgotten", "measure/certified.py", "open_blocks(model, ids, hooks,", "open_blocks(model, ids, [],", CERTIFIED),
    # certificates
    Mutation("a cast left narrow", "model/exact.py", "if isinstance(argument, torch.dtype) and argument in NARROW else argument", "if argument is torch.float16 else argument", EXACTLY),
    Mutation("weights not given back", "model/exact.py", "            tensor.data = narrow\n        for config, implementation", "            pass\n        for config, implementation", EXACTLY),
    Mutation("rounding without the lengths", "model/sight.py", "* EPS * self.product", "* EPS", EXACTLY),
    Mutation("rounding by the logit alone", "model/sight.py", "(across.square() + along.square()).sqrt()", "along.abs()", EXACTLY),
    Mutation("rounding stops at the cap", "model/attention.py", "self.keys.norm(dim=-1).max().item() * abs(self.scale)", "min(self.cap or 1e9, abs(self.scale))", SIGHT),
    Mutation("nothing marked is ahead", "model/sight.py", "torch.where(rows, places, 2 * n)", "torch.where(rows, places, n)", SIGHT),
    Mutation("a window one too long here", "model/sight.py", "else min(n, self.window))", "else min(n, self.window + 1))", SIGHT),
    Mutation("certified without a digit", "model/sight.py", "if not found <= MOST:", "if not found <= 1e9:", EXACTLY),
    Mutation("zero certified", "theory/edges.py", "torch.where(reached | (edges > 0), lost, 0.0)", "torch.where(edges > 0, lost, 0.0)", EXACTLY),
    Mutation("rounding not allowed for", "theory/edges.py", "edges * (1 + rounding) + torch", "edges * (1 - 3 * rounding) + torch", EXACTLY),
    Mutation("zero certified by local edges", "measure/_local.py", "self.attention.visible(block, keys), self.rounding)", "self.attention.visible(block, keys) & False, self.rounding)", EXACTLY),
    Mutation("what is missing is not added", "measure/_edges.py", "found[j, : j + 1] = factor * off", "found[j, : j + 1] = 0 * off", EXACTLY),
    Mutation("a block of another form", "measure/_edges.py", "if not share <= SHARE:", "if not share <= 1e9:", EXACTLY),
    Mutation("tokens from behind", "measure/_rows.py", "rows[:, :, query + 1 :].count_nonzero()", "rows[:, :, query + 2 :].count_nonzero()", EXACTLY),
    Mutation("tokens that meet one way", "measure/_local.py", "(places >> digit) % 2 == value", "(places >> digit) % 2 == 0", EXACTLY),
    Mutation("chances do not add up", "measure/certified.py", "self.norms.failure + self.form", "max(self.norms.failure, self.form)", EXACTLY),
    Mutation("two bounds fail like one", "theory/lanczos.py", "each = failure / 2", "each = failure", LANCZOS),
    Mutation("a certificate for one norm of many", "theory/lanczos.py", "2 * math.log(together / each)", "2 * math.log(1 / each)", LANCZOS),
    Mutation("directions that seldom fail", "theory/norms.py", "stats.chi2.ppf(chance, probes)", "stats.chi2.ppf(4 * chance, probes)", NORMS),
    Mutation("upper sketch without its factor", "measure/_upper.py", "factor * values.cpu()", "values.cpu()", EXACTLY),
    Mutation("half precision audited", "measure/audit.py", "dtype.itemsize < 4:", "dtype.itemsize < 2:", AUDIT),
    Mutation("quantised weights audited", "measure/audit.py", "if kind is not None or dtype.itemsize", "if dtype.itemsize", AUDIT),
    # sketches, swaps, the audit
    Mutation("Chernoff's exponent without its half", "theory/norms.py", "goal = 2 * math.log(chance) / probes", "goal = 4 * math.log(chance) / probes", NORMS),
    Mutation("lower and upper factors exchanged", "theory/norms.py", "return where(1.0, 2 - 2 * goal + 2) ** -0.5, where(1.0, math.exp(goal - 1)) ** -0.5", "return where(1.0, math.exp(goal - 1)) ** -0.5, where(1.0, 2 - 2 * goal + 2) ** -0.5", NORMS),
    Mutation("sketch not scaled", "measure/jacobian.py", "return drawn.T / math.sqrt(probes),", "return drawn.T,", JACOBIAN),
    Mutation("lower sketch not orthonormal", "measure/jacobian.py", "torch.linalg.qr(drawn).Q.T", "drawn.T", JACOBIAN),
    Mutation("partial correlation not divided", "theory/ranks.py", "/ rest.clamp(min=1e-12).sqrt()", "", RANKS),
    Mutation("position not held", "theory/ranks.py", "spearman(a, b) - with_a * with_b", "spearman(a, b)", RANKS),
    Mutation("interval of one side", "theory/ranks.py", "confidence_level=level", "confidence_level=level / 2", RANKS),
    Mutation("a token swapped for itself", "measure/substitution.py", "[t for t in choices if t != int(ids[place])]", "list(choices)", AUDIT),
    Mutation("KL the other way round", "measure/substitution.py", "divergence(own.expand_as(logs), logs)", "divergence(logs, own.expand_as(logs))", AUDIT),
    Mutation("read at the last token", "measure/substitution.py", "t[:, query].detach()", "t[:, -1].detach()", AUDIT),
    Mutation("tightness over the wrong Jacobian", "measure/audit.py", "values[rung.name] / values[rung.bounds]", "values[rung.name] / values[TRUTH]", AUDIT),
    Mutation("agreement over all positions", "measure/audit.py", "return torch.from_numpy(values[:, places])", "return torch.from_numpy(values)", AUDIT),
    Mutation("null multiplied", "measure/audit.py", "spearman(mine / null, truth)", "spearman(mine * null, truth)", AUDIT),
    Mutation("all-ones for the top logit", "measure/proxies.py", "torch.autograd.grad(logits.max(), leaf)", "torch.autograd.grad(leaf.sum(), leaf)", AUDIT),
    Mutation("needle of the first prompt everywhere", "measure/needle.py", "np.atleast_2d(values.values)[rows, at]", "np.atleast_2d(values.values)[0, at]", NEEDLE),
    Mutation("needle's bound times the null", "measure/needle.py", "bound / null}", "bound * null}", NEEDLE),
    Mutation("null of a path without the residual", "measure/walks.py", "null *= alpha + same[:, step].double()", "null *= alpha", PATHTOOLS),
    # the path product
    Mutation("α transposed", "theory/paths.py", "... query, ... query key -> ... key", "... key, ... query key -> ... query", PATHS),
    Mutation("δ dropped", "theory/paths.py", "attention_scale * pushed(weighted, pattern) + weighted", "attention_scale * pushed(weighted, pattern)", PATHS),
    Mutation("gain dropped", "theory/paths.py", "weighted = gain * row\n", "weighted = row\n", PATHS),
    Mutation("1/β₁ on the residual too", "theory/paths.py", "attention_scale * pushed(weighted, pattern) + weighted", "attention_scale * (pushed(weighted, pattern) + weighted)", PATHS),
    Mutation("window off by one", "theory/paths.py", "key > query - window", "key >= query - window", PATHS),
    Mutation("null not normalised", "theory/paths.py", "seen / seen.sum(dim=-1, keepdim=True)", "seen", PATHS),
    Mutation("null sees the future", "theory/paths.py", "visible = key <= query", "visible = key >= query", PATHS),
    Mutation("hops not shifted", "theory/paths.py", "torch.cat([none, attention_scale * attended])", "torch.cat([attention_scale * attended, none])", WALKS),
    Mutation("only the best prolongation kept", "theory/paths.py", "longer.flatten(1).topk(min(k, longer[0].numel()), dim=1)", "longer.flatten(1).topk(1, dim=1)", WALKS),
    Mutation("strongest without the residual", "theory/paths.py", "attention_scale * pattern.double() + torch.eye(n, dtype=torch.float64)", "attention_scale * pattern.double()", WALKS),
    Mutation("slowest rate without its half", "measure/walks.py", "(1 + below.max().item()) / 2", "below.max().item()", PATHTOOLS),
    Mutation("first token among the rates", "measure/walks.py", ".diagonal()[1 : last + 1]", ".diagonal()[: last + 1]", PATHTOOLS),
    # the bound on a model
    Mutation("sum over heads for the mean", "model/forward.py", "float().mean(dim=1)", "float().sum(dim=1)", STREAMED),
    Mutation("max over heads for the mean", "model/forward.py", "float().mean(dim=1)", "float().amax(dim=1)", STREAMED),
    Mutation("captured blocks mixed up", "measure/_attention.py", "head_mean(held[b])", "head_mean(held[blocks[0]])", CAPTURE),
    Mutation("blocks bottom-up", "measure/bound.py", "reversed(range(source, top))", "range(source, top)", BOUND),
    Mutation("a block too few", "measure/bound.py", "reversed(range(source, top))", "reversed(range(source + 1, top))", BOUND),
    Mutation("β₂ dropped", "measure/bound.py", 'betas["sigma_psi"] / betas["beta2"] + 1', 'betas["sigma_psi"] + 1', BOUND),
    Mutation("the MLP's residual dropped", "measure/bound.py", 'betas["sigma_psi"] / betas["beta2"] + 1', 'betas["sigma_psi"] / betas["beta2"]', BOUND),
    Mutation("β₃ dropped", "measure/bound.py", 'row / betas["beta3"] if', 'row if', BOUND),
    Mutation("β₃ also without the final norm", "measure/bound.py", 'row / betas["beta3"] if to == "y" else row', 'row / betas["beta3"]', BOUND),
    Mutation("β₁ inverted", "measure/bound.py", 'attention_scale=1 / betas["beta1"]', 'attention_scale=betas["beta1"]', BOUND),
    Mutation("null ignores windows", "measure/_attention.py", "make(native[b])", "make()", BOUND),
    Mutation("composition not halved", "measure/bound.py", "gain=0.5", "gain=1.0", BOUND),
    Mutation("layers upside down", "measure/bound.py", "torch.stack(rows[::-1])", "torch.stack(rows)", BOUND),
    # where things are read
    Mutation("hidden_states[-2] for the last residual", "model/anatomy.py", 'f"blocks.{top - 1}.hook_resid_post"', 'f"blocks.{top - 1}.hook_resid_pre"', CAPTURE),
    Mutation("y before its norm", "model/anatomy.py", '"ln_final.hook_out"', '"ln_final.hook_in"', JACOBIAN),
    Mutation("γ dropped from y", "model/anatomy.py", '"ln_final.hook_out"', '"ln_final.hook_normalized"', JACOBIAN),
    Mutation("a layer off by one", "model/anatomy.py", 'f"blocks.{layer}.hook_resid_pre"', 'f"blocks.{layer}.hook_resid_post"', CAPTURE),
    Mutation("window where there is none", "model/anatomy.py", "window if kind == SLIDING else None", "window", BOUND),
    # certified norms
    Mutation("steps as if the start were lucky", "theory/lanczos.py", "1.648 * math.sqrt(d) * norms", "1.648 * math.sqrt(d)", LANCZOS),
    Mutation("upper is lower", "theory/lanczos.py", "    return outside.sqrt()", "    return lower", LANCZOS),
    Mutation("a link of the recurrence left out", "theory/lanczos.py", "* here - link * before)", "* here)", LANCZOS),
    Mutation("exhausted by an absolute size", "theory/lanczos.py", "size > EXHAUSTED * scale", "size > EXHAUSTED", LANCZOS),
    # local edges
    Mutation("the softmax forgets the mean", "model/local.py", "to.sub_(mean[..., None] * (felt @ keys)[..., None, :])", "to.sub_(0 * mean[..., None] * (felt @ keys)[..., None, :])", LOCALMAPS),
    Mutation("own value with another's weight", "model/local.py", "alpha[:, here, here + rows.start - keys.start]", "alpha[:, here, here]", LOCALMAPS),
    Mutation("own key left out", "model/local.py", "found = found + away.to(dtype) * asked", "found = found + 0 * away.to(dtype) * asked", LOCALMAPS),
    Mutation("the cap's derivative left out", "model/local.py", "alpha * slope[0, 0] * attention.scale", "alpha * attention.scale", LOCALMAPS),
    Mutation("a window that starts a token late", "model/local.py", "rows.start - attention.window + 1", "rows.start - attention.window + 2", LOCALMAPS),
    Mutation("positions from 0 in every chunk", "model/local.py", "return call[:, rows]", "return call[:, : rows.stop - rows.start]", LOCALMAPS),
    Mutation("a chunk is not compared", "model/local.py", "if not (found.detach() - truth).abs().max().item() <= allowed:  # NaN too", "if False:", LOCALMAPS),
    Mutation("sinks of other heads", "model/attention.py", "heads = slice(group * each, (group + 1) * each)", "heads = slice(0, each)", LOCALMAPS),
    Mutation("key term without its length", "measure/_local.py", "felt = felt + away * (heard", "felt = felt + 0 * away * (heard", LOCAL),
    Mutation("pairs of coordinates once", "measure/_local.py", "torch.where(left == right, 1.0, 2.0)", "torch.where(left == right, 1.0, 1.0)", LOCAL),
    Mutation("what F adds left out", "measure/_local.py", "self.excess[block, None] * total)", "total)", LOCAL),
    Mutation("the diagonal not apart", "measure/_local.py", "torch.where(here, self.diagonal[block, None], self.excess", "torch.where(here & False, self.diagonal[block, None], self.excess", LOCAL),
    Mutation("an edge nobody checks", "measure/_local.py", "if off or not (found", "if off and not (found", LOCAL),
    Mutation("the metric of another head", "measure/_local.py", "by_head[range(heads), range(heads)]", "by_head[range(heads), range(heads)].flip(0)", LOCAL),
    Mutation("edges of the block above", "measure/certified.py", "block = opened(replay, bottom, to)", "block = opened(replay, max(b for b, _ in wanted), to)", CERTIFIED),
    # the Jacobian
    Mutation("Gram of the wrong side", "theory/norms.py", "[..., -1].clamp", "[..., 0].clamp", NORMS),
    Mutation("root dropped", "theory/norms.py", "[..., -1].clamp(min=0).sqrt()", "[..., -1].clamp(min=0)", NORMS),
    Mutation("sum for the sum of squares", "theory/norms.py", ".double().square().sum", ".double().abs().sum", NORMS),
    Mutation("cotangents of half length", "measure/jacobian.py", "return torch.eye(d, dtype=torch.float64), {}", "return 0.5 * torch.eye(d, dtype=torch.float64), {}", JACOBIAN),
    Mutation("query off by one", "measure/_rows.py", "alone = output[:, query]", "alone = output[:, query - 1]", REPLAY),
    Mutation("last cotangents left out", "model/spans.py", "in cotangents.split(batch):", "in cotangents.split(batch)[:-1]:", JACOBIAN),
    Mutation("Frobenius without its root", "measure/_rows.py", "map(squared_frobenius, batches())).sqrt()", "map(squared_frobenius, batches()))", JACOBIAN),
    Mutation("freezing that does nothing", "model/freeze.py", "lambda t: t.detach(), blocks)", "lambda t: t, blocks)", JACOBIAN),
    Mutation("freezing the first block only", "model/hooks.py", "range(n_blocks) if self.blocks is None", "range(1) if self.blocks is None", JACOBIAN),
    Mutation("QK-norms left live", "model/freeze.py", 'if name.endswith("hook_scale")]', 'if name.endswith("hook_scale") and ".attn." not in name]', FREEZE),
    Mutation("final norm left live", "model/freeze.py", "if inside is None or name.startswith(inside)", "if name.startswith(inside or 'blocks.')", FREEZE),
    Mutation("norm denominators not frozen", "model/freeze.py", 'Hook("freeze_norms", name, lambda t: t.detach())', 'Hook("freeze_norms", name, lambda t: t * 1)', FREEZE),
    Mutation("activation cut instead of made linear", "model/freeze.py", "activation.detach() + (argument - constant) * ratio", "activation.detach()", FREEZE),
    Mutation("gates not frozen", "model/freeze.py", 'f"{mlp}.gate.hook_out", lambda t: t.detach()', 'f"{mlp}.gate.hook_out", lambda t: t', FREEZE),
    # the proof
    Mutation("logits not compared", "model/proof.py", 'pairs = [("logits", logits, truth.logits)]', "pairs = []", PROOF),
    Mutation("anything is close enough", "model/proof.py", "if difference <= allowed:", "if True:", PROOF),
    Mutation("dead hooks overlooked", "model/live.py", "for site, reached in fired.items() if not reached]", "for site, reached in fired.items() if reached is None]", PROOF),
    # proofs that hold for what was proved; one thread at a time
    Mutation("a proof that outlives its weights", "model/registry.py", "state.of(str(state.stamp))", 'state.of("")', REGISTRY),
    Mutation("buffers and weights left out of the stamp", "model/fingerprint.py", "if tensor is not None and key not in passing:", "if False:", REGISTRY),
    Mutation("attributes left out of the stamp", "model/fingerprint.py", "for key in sorted(attributes):", "for key in ():", REGISTRY),
    Mutation("configuration left out of the stamp", "model/fingerprint.py", 'yield f"configuration {configuration(inner)}"', "", REGISTRY),
    Mutation("fingerprints depend on the last pass", "model/rotary.py", "            found |= names", "            pass", REGISTRY),
    Mutation("edited frequencies taken for a trace", "model/rotary.py", "if _follow(module, prefix, layer_type, kind):", "if True:", REGISTRY),
    Mutation("parts not compared with the configuration", "model/proof.py", "        require_same_parts(model.original_model, plain)", "        pass", REGISTRY),
    Mutation("signs cancel in a digest", "model/words.py", "mixed.add_(rows).mul_(weights)", "mixed.copy_(rows).mul_(weights)", REGISTRY),
    Mutation("digest blind to order", "model/words.py", "found.append((z ^ (z >> 31)) | 1)", "found.append(1)", RESULTS),
    Mutation("autocast accepted", "model/registry.py", "    if active:", "    if False:", REGISTRY),
    Mutation("changes during a measurement overlooked", "model/registry.py", "if _versions(model) != before:", "if False:", REGISTRY),
    Mutation("threads do not wait", "model/locks.py", "while self.owner not in (None, me):", "while False:", REGISTRY),
    Mutation("threads wait for each other for ever", "model/locks.py", "if lock.owner == me:", "if False:", REGISTRY),
    Mutation("a public function that takes no lock", "measure/readout.py", "@measured", "", REGISTRY),
    Mutation("a foreign bridge taken for its checkpoint", "model/proof.py", "covers = OWN_MODULE if is_native(model) else AS_IT_STANDS", "covers = VERIFIED", PROOF),
    Mutation("small numbers agree with anything", "model/proof.py", "<= TOLERANCE[dtype] * theirs.double().abs().max().item()", "<= TOLERANCE[dtype] * max(1.0, theirs.double().abs().max().item())", PROOF),
    Mutation("experts in any order", "model/complete.py", "if number >= most[before]", "if False", COMPLETE),
    Mutation("a quantization nobody applied", "model/complete.py", 'if getattr(model, "hf_quantizer", None) is not None:', "if True:", COMPLETE),
    Mutation("float64 models round in float64", "measure/_pairs.py", "return 2 * n_blocks(self.session.model) + 1 if", "return 0 if", "tests/measure/test_noise.py"),
    Mutation("writes past PyTorch overlooked", "model/registry.py", "(watched and fingerprint(model) != state.fingerprint)", "False", REGISTRY),
    Mutation("a capture of any function of that name", "model/capture.py", "(self.ambient_hooks, self.functions), (tuple(ambient(model)), tuple(unnamed(model).values()))", "self.ambient_hooks, tuple(ambient(model))", REGISTRY),
    Mutation("numpy scalars by their type", "model/fingerprint.py", "return repr(value.item())", "return type(value).__name__", REGISTRY),
    Mutation("globals are no part of a function", "model/fingerprint.py", "for name, v in sorted(read.items())", "for name, v in ()", REGISTRY),
    Mutation("modules of any class", "model/parts.py", "if type(module) is not type(theirs) and not lists:", "if False:", REGISTRY),
    Mutation("hooks on every module overlooked", "model/hooks.py", "for f in everywhere)", "for f in ())", REGISTRY),
    Mutation("another tokenizer's answers", "measure/_session.py", '"tokenizer": tokenizer_digest(self.model)', '"tokenizer": ""', "tests/measure/test_behave.py"),
    Mutation("traces that cancel are a bound", "theory/edges.py", "+ sums * torch.finfo(frobenius.dtype).eps * unsigned", "", EXACTLY),
    Mutation("a library's hooks taken for the user's", "model/hooks.py", '("transformer_lens", "transformers.utils.output_capturing")', '("transformer_lens",)', "tests/model/test_hooks.py"),
    # checkpoints
    Mutation("missing tensors pass", "model/complete.py", '"missing": missing', '"missing": []', COMPLETE),
    Mutation("tensors left over pass", "model/complete.py", '"left over": left', '"left over": []', COMPLETE),
    Mutation("tensors of another shape pass", "model/complete.py", '"of another shape": shapes', '"of another shape": []', COMPLETE),
    Mutation("tensors under two names pass", "model/complete.py", '"stored under two names": twice', '"two": []', COMPLETE),
    Mutation("transformers' patterns trusted", "model/complete.py", "if places[name] is None and _ignored(name, model)", "if False", COMPLETE),
    Mutation("any mask passes", "model/complete.py", "torch.equal(mask, torch.ones_like(mask).tril())", "True", COMPLETE),
    Mutation("any mask value passes", "model/complete.py", "value.numel() == 1 and float(value) <= -1e4", "True", COMPLETE),
    Mutation("any rotary frequencies pass", "model/complete.py", "rtol=rounding", "rtol=1.0", COMPLETE),
    Mutation("any position ids pass", "model/complete.py", "torch.equal(stored.flatten().long(), torch.arange(stored.numel()))", "True", COMPLETE),
    Mutation("NaN passes", "model/complete.py", "all(bool(torch.isfinite(end)) for end", "any(True for end", COMPLETE),
    Mutation("integers pass", "model/complete.py", "if tensor.dtype in FLOATING or", "if True or", COMPLETE),
    Mutation("two different heads pass", "model/complete.py", "not torch.equal(first.cpu(), second.cpu())", "False", COMPLETE),
    Mutation("offloaded weights pass", "model/complete.py", "if tensor.is_meta:", "if False:", COMPLETE),
    Mutation("an adapter passes", "model/checkpoint.py", "if _file(source, ADAPTER, revision) is not None:", "if False:", COMPLETE),
    Mutation("a tensor in two shards passes", "model/checkpoint.py", "            if name in tensors:", "            if False:", COMPLETE),
    Mutation("an index may name anything", "model/checkpoint.py", "    if wrong:", "    if False:", COMPLETE),
    Mutation("files by rank pass", "model/checkpoint.py", "_BY_RANK.fullmatch(path.name)", "False", COMPLETE),
    Mutation("any class is built", "model/load.py", "if built not in config.architectures:", "if False:", COMPLETE),
    Mutation("code of its own passes", "model/load.py", "if own_code != built:", "if False:", COMPLETE),
    Mutation("transformers' table is shown", "model/load.py", "of_transformers.set_verbosity_error()", "pass", COMPLETE),
    Mutation("experts in grouped products", "model/load.py", 'experts_implementation="eager"', 'experts_implementation="grouped_mm"', LOAD),
    # tokens, hooks, results
    Mutation("two BOS pass", "model/tokens.py", "if found[0] != len(start) and", "if found[0] < len(start) and", TOKENS),
    Mutation("BOS not prepended", "model/tokens.py", "[*lead, *encode(model, text)]", "[*encode(model, text)]", TOKENS),
    Mutation("BOS by TransformerLens's tokenizer", "model/start.py", "asked = own or held", "asked = held", START),
    Mutation("BOS that is an EOS in the text", "model/start.py", "tuple(whole[:start])", "(bare[0],)", START),
    Mutation("other tokens in front unchecked", "model/tokens.py", "if set(start) - {own}:", "if False:", START),
    Mutation("the tokenizer's rule is not said", "model/start.py", "rule if len(ids) == table else", "rule if True else", START),
    Mutation("a name for every folder's path", "measure/_session.py", "folder.resolve().name if", "name if", START),
    Mutation("hooks left behind", "model/hooks.py", "stack.callback(_remove, point, handle)", "pass", UNCHANGED),
    Mutation("stale hooks accepted", "model/capture.py", '"hooks": (self.ambient_hooks, tuple(ambient(model)))', '"hooks": (0, 0)', CAPTURE),
    # the comparison and what is said of it
    Mutation("ratio inverted", "measure/sensitivity.py", "(bound / null)", "(null / bound)", SENSITIVITY),
    Mutation("null is the model", "measure/sensitivity.py", 'attention="uniform", ', "", SENSITIVITY),
    Mutation("frozen is not frozen", "measure/sensitivity.py", 'freeze="attention", ', "", SENSITIVITY),
    Mutation("query token in the ranks", "measure/sensitivity.py", "reach - 1)", "reach)", SENSITIVITY),
    Mutation("Pearson for Spearman", "theory/trends.py", "np.corrcoef(stats.rankdata(x), stats.rankdata(y))", "np.corrcoef(x, y)", TRENDS),
    Mutation("below for above", "reporting/sentences.py", "(bound < truth).sum()", "(bound > truth).sum()", SENTENCES),
    Mutation("early for late", "reporting/sentences.py", "    if rank.rho < 0:", "    if rank.rho > 0:", SENTENCES),
    # distances
    Mutation("L1 for L2", "theory/distances.py", '"l2": 2.0', '"l2": 1.0', DISTANCES),
    Mutation("rms without its root", "theory/distances.py", ".square().mean(dim=-1).sqrt()", ".square().mean(dim=-1)", DISTANCES),
    Mutation("ulp of the binade above", "theory/distances.py", "exponent - 1)", "exponent)", DISTANCES),
    Mutation("one ulp for the whole vector", "theory/distances.py", "ulp(torch.maximum(v.abs(), w.abs()), dtype)", "ulp(torch.maximum(v.abs(), w.abs()).amax(dim=-1, keepdim=True), dtype)", DISTANCES),
    Mutation("identical before rounding", "theory/distances.py", "given.to(dtype).contiguous().view(whole)", "given.contiguous()", DISTANCES),
    Mutation("KL the other way", "theory/distances.py", "log_p.exp() * (log_p - log_q)", "log_q.exp() * (log_q - log_p)", DISTANCES),
    Mutation("share of the largest, not the widest", "theory/distances.py", "total.abs().argmax", "total.argmax", DISTANCES),
    Mutation("a fall at the last length is enough", "theory/statements/limits.py", "return all(b <= a", "return any(b <= a", STATEMENTS),
    Mutation("what levels off decays", "theory/statements/limits.py", ")) ** RATE for", ")) ** 0 for", STATEMENTS),
    Mutation("values, not what is ahead of them", "theory/statements/limits.py", "max(values[k:])", "values[k]", STATEMENTS),
    Mutation("an infinite M is a bound", "theory/statements/softmax.py", "bool(more.isfinite().all()) and math.isfinite(bound)", "True", STATEMENTS),
    Mutation("differences of the last entry only", "theory/statements/softmax.py", "float(apart[start:n].max())", "float(apart[n - 1])", STATEMENTS),
    Mutation("a right side above 2 shows a limit", "theory/statements/softmax.py", "[min(step.right, most) for step in steps]", "[step.right for step in steps]", STATEMENTS),
    Mutation("rows checked at the last length only", "theory/statements/collapse.py", "for pair in rows for one in pair", "for pair in rows[-1:] for one in pair", STATEMENTS),
    Mutation("numbers compared, not bits", "theory/distances.py", "same: Bool[Tensor, \"*many d\"] = first == second", "same: Bool[Tensor, \"*many d\"] = v.to(dtype) == w.to(dtype)", STATEMENTS),
    Mutation("tokens tried in reverse only", "theory/statements/counting.py", "torch.randperm(len(entered), generator=generator)", "torch.arange(len(entered)).flip(0)", STATEMENTS),
    Mutation("β₁ and β₂ exchanged", "theory/statements/squashing.py", "attention_scale=1 / first, gain=sigma / second + 1", "attention_scale=1 / second, gain=sigma / first + 1", STATEMENTS),
    Mutation("β₃ forgotten", "theory/statements/squashing.py", "bound = product / third", "bound = product", STATEMENTS),
    Mutation("attention may follow the tokens", "theory/statements/squashing.py", "steady &= not bool(torch.func.jacrev(block)(now).any())", "pass", STATEMENTS),
    Mutation("ψ may mix tokens", "theory/statements/squashing.py", "own.abs().sum() * (1 + ROUNDING))", "own.abs().sum() * 1e9)", STATEMENTS),
    Mutation("neighbours taken for independent", "theory/trends.py", "min(2 * math.ceil(", "min(0 * math.ceil(", TRENDS),
    Mutation("an interval below Fisher's", "theory/trends.py", "(n - 3) ** -0.5)", "0.0)", TRENDS),
    Mutation("ranks of the others ignored", "theory/trends.py", "(u * v + _above(u, v) + _above(v, u))", "(u * v)", TRENDS),
    Mutation("several trends, one test", "theory/trends.py", "np.arange(len(order), 0, -1)", "1", TRENDS),
    Mutation("strength by ρ alone", "reporting/strength.py", "sorted((abs(self.low), abs(self.high)))", "(abs(self.rho), abs(self.rho))", SENTENCES),
    Mutation("a direction by significance alone", "reporting/strength.py", "self.measured and (self.low > 0 or self.high < 0) and", "self.measured and", SENTENCES),
    Mutation("a direction without Holm", "reporting/strength.py", " and self.p < TEST", "", SENTENCES),
    Mutation("prompts without a value in the mean", "theory/ranks.py", "row[~np.isnan(row)]", "np.nan_to_num(row)", RANKS),
    # sequences and pairs
    Mutation("the neighbour for the pair", "sequences.py", "stem.then((stem.ids(self.trunk)[-1], *self.suffix))", "stem.then((self.trunk[min(stem.at, len(self.trunk) - 1)], *self.suffix))", PROMPTS),
    Mutation("anything is a pair", "sequences.py", "if self.v_star != (*stem, stem[-1], *tail):", "if False:", PROMPTS),
    Mutation("separators a place late", "sequences.py", "(p := self._start(b) + 1)", "(p := self._start(b) + 2)", PROMPTS),
    Mutation("contrast with itself", "sequences.py", "if t != last", "if t == last", PROMPTS),
    # shared passes
    Mutation("shared pass without windows", "model/branches.py", "visible & (distance < window)", "visible", PASSES),
    Mutation("shared window off by one", "model/branches.py", "distance < window", "distance <= window", PASSES),
    Mutation("joined across a gap", "model/branches.py", "if positions is not None and at and positions[at] != positions[at - 1] + 1:", "if False:", PASSES),
    Mutation("branches see one another", "model/passes.py", "visible[start:stop, n + start : n + stop] = causal(own)", "visible[start:stop, n : n + stop] = True", PASSES),
    Mutation("branches see the whole trunk", "model/passes.py", "visible[start:stop, : branch.at] = True", "visible[start:stop, :n] = True", PASSES),
    Mutation("branch positions restart", "model/passes.py", "first = trunk[-1] + 1 if len(trunk) else 0", "first = 0", PASSES),
    Mutation("one chunk leaves its keys to the next", "model/passes.py", "fresh = copy.copy(cache)", "fresh = cache", PASSES),
    Mutation("pattern columns of another branch", "model/passes.py", "keys[row, branch.at : branch.at + own] = torch.arange(n + start, n + stop)", "keys[row, branch.at : branch.at + own] = torch.arange(n, n + own)", PASSES),
    Mutation("editing hooks overlooked", "model/passes.py", "    if edited:\n        return None", "    if False:\n        return None", PASSES),
    Mutation("longrope taken for static", "model/positions.py", "(kind == LONG or DYNAMIC in kind)", "DYNAMIC in kind", POSITIONS),
    Mutation("longrope switches one token late", "model/positions.py", "n > limit if kind == LONG", "n > limit + 1 if kind == LONG", POSITIONS),
    Mutation("the trunk's own length overlooked", "model/passes.py", "every = [*plan.branches, Branch(max(b.at for b in plan.branches))]", "every = list(plan.branches)", POSITIONS),
    Mutation("sharing believed at the lengths asked for", "model/passes.py", "if not off[i] <= allowed]", "if False]", POSITIONS),
    Mutation("the shortest prompt left unchecked", "model/passes.py", "chosen = {order[0], order[-1]}", "chosen = {order[-1]}", POSITIONS),
    Mutation("the longest prompt left unchecked", "model/passes.py", "chosen = {order[0], order[-1]}", "chosen = {order[0]}", POSITIONS),
    Mutation("one trunk's agreement taken for another's", "model/passes.py", "key = (few.trunk, few.branches, few.sites, few.positions)", "key = len(few.branches)", POSITIONS),
    Mutation("earlier passes remembered", "model/forward.py", "    forget_lengths(model)\n", "", POSITIONS),
    Mutation("earlier answers remembered", "model/generate.py", "    forget_lengths(model)\n", "", POSITIONS),
    Mutation("sharing believed untried", "model/passes.py", "<= tolerance * max(1.0, rows.abs().max().item())", "<= float('inf')", PASSES),
    Mutation("writing in place is looking", "model/edits.py", "a is b and i == j", "a is b", PASSES),
    # collapse
    Mutation("relative to v*", "measure/_pairs.py", "rms(a) for a in v", "rms(a) for a in w", COLLAPSE),
    Mutation("rounding that does not round", "measure/_pairs.py", "return v if self.round_to is None else stored(v, self.round_to)", "return v", COLLAPSE),
    Mutation("replay that shares", "measure/_pairs.py", 'passes="separate"', 'passes="auto"', COLLAPSE),
    Mutation("replay not compared", "measure/_pairs.py", "if not error <= allowed:", "if False:", COLLAPSE),
    Mutation("y is the last layer", "measure/_pairs.py", "values.select(axis, top)", "values.select(axis, top - 1)", COLLAPSE),
    Mutation("slices across heads", "measure/collapse.py", '"layer n (h e) -> layer h n e"', '"layer n (e h) -> layer h n e"', COLLAPSE),
    Mutation("unrelated is itself", "measure/collapse.py", "sequence=runs.sequence.unrelated(rng)", "sequence=runs.sequence", COLLAPSE),
    Mutation("contrast is the pair", "measure/collapse.py", "sequence.contrast(n) for n", "sequence.doubled(n) for n", COLLAPSE),
    Mutation("KL from v* to v", "measure/collapse.py", "divergence(p, q)", "divergence(q, p)", COLLAPSE),
    Mutation("next token without the final norm", "measure/collapse.py", "ruler.rounded(v.values[-1])", "ruler.rounded(v.values[-2])", COLLAPSE),
    Mutation("soft-cap dropped", "model/unembed.py", "logits if cap is None else torch.tanh(logits / cap) * cap", "logits", COLLAPSE),
    # its mechanism
    Mutation("key/value head by remainder", "measure/mechanism.py", "h // group", "h % values.shape[1]", MECHANISM),
    Mutation("smallest value norm", "measure/mechanism.py", ".cummax(dim=0)", ".cummin(dim=0)", MECHANISM),
    Mutation("own weight left out of the bound", "measure/mechanism.py", "largest.T * (variation + own)", "largest.T * variation", MECHANISM),
    Mutation("weight of the old token", "measure/mechanism.py", "star[:, k, :, n].double()", "star[:, k, :, n - 1].double()", MECHANISM),
    Mutation("MLP in attention's place", "measure/mechanism.py", 'f"blocks.{block}.{name}" for name in ("hook_attn_out", "hook_mlp_out")', 'f"blocks.{block}.{name}" for name in ("hook_mlp_out", "hook_attn_out")', MECHANISM),
    # separators
    Mutation("masked from themselves", "model/interventions.py", "hidden(query, key) & (query > key), -torch.inf", "hidden(query, key) & (query >= key), -torch.inf", HOOKS),
    Mutation("a score of zero for a mask", "model/interventions.py", "hidden(query, key) & (query > key), -torch.inf)", "hidden(query, key) & (query > key), 0.0)", SEPARATORS),
    Mutation("a window without the query in it", "model/interventions.py", "query - key >= window", "query - key > window", INTERVENTIONS),
    Mutation("a sink one token short", "model/interventions.py", "(key >= sink)", "(key >= sink - 1)", INTERVENTIONS),
    Mutation("cold for hot", "model/interventions.py", "lambda scores: scores / temperature", "lambda scores: scores * temperature", INTERVENTIONS),
    Mutation("evenly over what is hidden too", "model/interventions.py", "torch.where(shown(scores), to(scores), scores)", "to(scores)", INTERVENTIONS),
    Mutation("every head for some", "model/interventions.py", "(before.ndim - dim - 1)), change(before), before)", "(before.ndim - dim - 1)), change(before), change(before))", INTERVENTIONS),
    Mutation("weights zeroed that stay", "model/interventions.py", "_among(key, places) & (query > key), 0.0)", "_among(key, places) & (query >= key), 0.0)", INTERVENTIONS),
    Mutation("positions of a cached pass from 0", "model/interventions.py", "return place[keys - queries :, None], place", "return place[:queries, None], place", INTERVENTIONS),
    Mutation("keys zeroed for values", "model/interventions.py", '("attn_scores", "pattern", "v")', '("attn_scores", "pattern", "k")', SEPARATORS),
    Mutation("a branch's own tokens ablated", "model/passes.py", "plan.hooks(branch.at)", "plan.hooks(len(branch))", SEPARATORS),
    Mutation("retained upside down", "measure/separators.py", "(ablated - none) / effect", "(separators - ablated) / effect", SEPARATORS),
    Mutation("divided by noise", "measure/separators.py", "effect.abs() > NOISE_FLOORS * floor[:, None]", "effect.abs() > floor[:, None]", SEPARATORS),
    Mutation("hooks from the first block always", "measure/_ablations.py", "runs.layers[from_block:-1]", "runs.layers[:-1]", SEPARATORS),
    Mutation("positions close up", "measure/_ablations.py", '{"positions": (*kept, kept[-1] + 1)}', "{}", SEPARATORS),
    Mutation("the digit after a separator", "measure/_ablations.py", "sequence.content[b - 1] for b", "sequence.content[min(b, len(sequence) - 1)] for b", SEPARATORS),
    Mutation("branches not masked", "measure/_ablations.py", 'everywhere if kind in ("mask", "zero_pattern") else ()', "()", SEPARATORS),
    Mutation("closer for farther", "reporting/collapse_sentences.py", "(ratio < 1).sum()", "(ratio > 1).sum()", SAYS),
    Mutation("separators always help", "reporting/collapse_sentences.py", "if up >= CLEAR * n", "if up >= 0", SAYS),
    # other prompts' streams
    Mutation("the first prompt for the mean", "model/reference.py", "_streams(model, reference, places).mean(dim=1)", "_streams(model, reference, places)[:, 0]", REFERENCE),
    Mutation("another prompt than was drawn", "model/reference.py", "reference[number : number + 1]", "reference[:1]", REFERENCE),
    Mutation("the streams of block 0 in every block", "model/reference.py", "self.rows[block, here]", "self.rows[0, here]", REFERENCE),
    Mutation("hooks act on the reference", "model/reference.py", "torch.no_grad(), without_ambient(model)", "torch.no_grad()", REFERENCE),
    Mutation("a hook on the repeated digit", "measure/_ablations.py", "runs.sequence.separator_places(runs.lengths[-1])", "runs.sequence.separator_places()", SEPARATORS),
    Mutation("zeroed weights left out on the cache", "measure/_ablations.py", 'kind in ("mask", "zero_pattern")', 'kind == "mask"', SEPARATORS),
    Mutation("a period one too long", "sequences.py", "range(period, len(self) + 1, period)", "range(period + 1, len(self) + 1, period)", PROMPTS),
    # weights in eight bits
    Mutation("weights rounded for each tensor, not each channel", "model/quantised.py", "Int8WeightOnlyConfig(set_inductor_config=False)", "Int8WeightOnlyConfig(set_inductor_config=False, granularity=__import__('torchao.quantization', fromlist=['PerTensor']).PerTensor())", QUANTISED),
    Mutation("the output head rounded too", "model/quantised.py", "isinstance(module, nn.Linear) and module is not head}", "isinstance(module, nn.Linear)}", QUANTISED),
    Mutation("a matrix left unrounded in silence", "model/quantised.py", "if parameter.ndim > 1 and type(parameter) in PLAIN:", "if parameter.ndim > 9 and type(parameter) in PLAIN:", QUANTISED),
    Mutation("int8 in float16", "model/quantised.py", "if dtype == torch.float16:", "if dtype == torch.complex64:", QUANTISED),
    Mutation("float64 weights that torchao cannot round", "model/quantised.py", "layer.weight.data = layer.weight.data.float()", "pass", QUANTISED),
    Mutation("rounded weights rounded again", "model/quantised.py", '"quantization_config", None) is not None', '"quantisation_config", None) is not None', QUANTISED),
    Mutation("offloaded weights rounded", "model/quantised.py", "if any(p.is_meta for p in model.parameters()):", "if not model:", QUANTISED),
    Mutation("quantised weights go unnamed", "model/quantised.py", "if type(p) not in PLAIN}", "if type(p) in ()}", QUANTISED),
    Mutation("a quantisation told by the configuration goes unnamed", "model/quantised.py", "or quantisation(model)", "or None", QUANTISED),
    Mutation("a kind of integers not asked about", "model/quantised.py", 'one_of(kind, Quantised, "quantise")', "str(kind)", QUANTISED),
    Mutation("loggers left silent", "model/quantised.py", "logger.setLevel(level)", "logger.setLevel(logging.ERROR)", QUANTISED),
    Mutation("torchao heard", "model/quantised.py", "logger.setLevel(logging.ERROR)", "logger.setLevel(logging.INFO)", QUANTISED),
    Mutation("scales left out of the fingerprint", "model/words.py", "tensor.__tensor_flatten__()[0]:", "tensor.__tensor_flatten__()[0][:1]:", QUANTISED),
    Mutation("whole numbers left out of the fingerprint", "model/words.py", "tensor.__tensor_flatten__()[0]:", "tensor.__tensor_flatten__()[0][1:]:", QUANTISED),
    Mutation("results silent about rounded weights", "measure/_session.py", '"quantised": stored_as(sound),', '"quantised": None,', QUANTISED),
    Mutation("weights not rounded", "model/load.py", "round_weights(inner, quantise)", "pass", QUANTISED),
    Mutation("a missing quantiser found out after loading", "model/load.py", "require_quantiser(quantise, dtype)", "pass", QUANTISED),
    # repeats as text
    Mutation("any token behind counts as a repeat", "measure/_texts.py", "longer.ids == (*text.ids, text.ids[-1])", "longer.ids[:-1] == text.ids", TOKENISATION),
    Mutation("a longer text counts as a grown one", "measure/_texts.py", "longer.ids[: len(text.ids)] == text.ids", "len(longer.ids) > len(text.ids)", TOKENISATION),
    Mutation("a repeat that is one token once", "measure/_texts.py", "text.content.count(token) == text.repeats", "token in text.content", TOKENISATION),
    Mutation("the prompt's characters taken for repeats", "measure/_texts.py", "return as_many and _bare(held, text.content) == _bare(held, encode(held, text.written))", "return as_many", TOKENISATION),
    Mutation("the prompt's tokens counted", "measure/_texts.py", "Text(repeats, written, ids, start)", "Text(repeats, written, ids, 0)", TOKENISATION),
    Mutation("equal tokens told apart", "measure/_texts.py", "len(set(text.content))", "len(text.content)", TOKENISATION),
    Mutation("spaces of a token not shown", "measure/_texts.py", 'raw.replace("▁", SPACE)', 'raw.replace("▁", "")', TOKENISATION),
    Mutation("a text compared with itself", "measure/tokenisation.py", "[*whole[:-1], *whole[1:],", "[*whole[:-1], *whole[:-1],", TOKENISATION),
    Mutation("the pair measured from the longer text", "measure/tokenisation.py", "ruler.gap(text, doubled)", "ruler.gap(longer, doubled)", TOKENISATION),
    Mutation("a BOS for families without", "measure/tokenisation.py", "start_ids(sound, \"family\")", "start_ids(sound, \"one\")", TOKENISATION),
    Mutation("merged anew drawn as grown", "figures/tokenisation.py", 'np.where(here["grows"].values, 1, 2)', 'np.where(here["grows"].values, 1, 1)', TOKENPICTURES),
    Mutation("boxes a place too far", "figures/tokenisation.py", "base=ends - widths", "base=ends", TOKENPICTURES),
    # fewer bits
    Mutation("one coordinate that is the same", "measure/precision.py", "(rounded(v, bits) == rounded(star, bits)).all(dim=-1)", "(rounded(v, bits) == rounded(star, bits)).any(dim=-1)", PRECISION),
    Mutation("the first bits that tell", "measure/precision.py", "for bits in range(own + 1):", "for bits in reversed(range(own + 1)):", PRECISION),
    Mutation("a length at which they once were the same", "measure/precision.py", "holds.flip(-1).long().cumprod(dim=-1)", "holds.flip(-1).long()", PRECISION),
    Mutation("the range is not looked at", "measure/precision.py", "if within(one, dtype) and within(other, dtype):", "if True:", PRECISION),
    Mutation("one token's embedding twice is a loss", "measure/precision.py", "(enters == 1) & apart", "(enters == 1)", PRECISION),
    Mutation("every block rounded for one", "measure/precision.py", '"residual", (block,))', '"residual")', PRECISION),
    Mutation("numbers beyond a format held at its end", "model/rounding.py", "if not within(tensor, form):", "if False:", PRECISION),
    Mutation("int8 without the rounding", "measure/precision_by_run.py", '"int8" if run == "int8" else None', "None", PRECISION),
    Mutation("every run in float32", "measure/precision_by_run.py", 'if run == "int8" else run', 'if run == "int8" else "float32"', PRECISION),
    # answers
    Mutation("the start of an answer taken for it", "measure/accuracy.py", "(*ids, None)", "ids", ACCURACY),
    Mutation("anything may follow an answer", "measure/accuracy.py", "not tokenizer.decode([token])[:1].isalnum()", "True", ACCURACY),
    Mutation("only a special token ends an answer", "measure/accuracy.py", "return token in special or not tokenizer.decode([token])[:1].isalnum()", "return token in special", ACCURACY),
    Mutation("an answer's tokens not put behind the prompt", "measure/accuracy.py", "(*prompt, *ids[:step])", "prompt", ACCURACY),
    Mutation("one right token is enough", "measure/accuracy.py", "] &= as_asked", "] = as_asked", ACCURACY),
    Mutation("one prompt's answers given to another", "model/ends.py", "following[part] = logits", "following[part[::-1]] = logits", ACCURACY),
    Mutation("answers beyond the context", "measure/accuracy.py", "tokens(model, torch.tensor((*prompt, *ids)), bos=sequence.bos)", "tokens(model, torch.tensor(prompt), bos=sequence.bos)", ACCURACY),
    # interventions side by side
    Mutation("hooks of a change left out", "measure/compare.py", "applied(model, *(part for part in parts if not isinstance(part, Sequence)))", "applied(model)", COMPARE),
    Mutation("another form of the sequence left out", "measure/compare.py", "form = forms[0]", "form = self.sequence", COMPARE),
    Mutation("the bound of the first tokens, whatever they are", "measure/compare.py", "here = bound[places]", "here = bound[: len(places)]", COMPARE),
    Mutation("the bound of the pair's other prompt", "measure/compare.py", "form.plain(longest).ids(form.trunk)", "form.doubled(longest).ids(form.trunk)", COMPARE),
    Mutation("every draw the same", "measure/compare.py", "Random(f\"asked {self.seed} {number}\")", "Random(f\"asked {self.seed}\")", COMPARE),
    Mutation("the seed without effect", "measure/compare.py", "Random(f\"asked {self.seed} {number}\")", "Random(f\"asked {number}\")", COMPARE),
    Mutation("the floor as a difference of distances", "measure/_pairs.py", "plain.gap(one, other), torch.stack", "(plain.gap(*pair) - plain.gap(*again)).abs() / 2, torch.stack", NOISE),
    Mutation("a floor of 0 by luck", "measure/_pairs.py", "torch.stack([resolution(row, self.norm, row.dtype) for row in one])", "torch.zeros(())", NOISE),
    Mutation("the noise of v alone", "measure/_pairs.py", "for one, other in zip(pair, again, strict=True)\n        ]).sum", "for one, other in [(pair[0], again[0])]\n        ]).sum", NOISE),
    Mutation("rms taken as exact", "measure/_pairs.py", "+ self.gap(*again) * (there - here).abs() / here", "", NOISE),
    Mutation("separate passes replayed as they were", "measure/_pairs.py", "copies=2 if alone else 1", "copies=1", NOISE),
    Mutation("a floor that was not measured is 0", "measure/separators.py", "torch.full((len(runs.layers) + 1,), torch.nan, dtype=torch.float64)", "torch.zeros(len(runs.layers) + 1, dtype=torch.float64)", NOISE),
    Mutation("rounding shared out", "measure/mechanism.py", "torch.where(clear[b + 1], _shares(bridge, v, star, b, norm), torch.nan)", "_shares(bridge, v, star, b, norm)", NOISE),
    Mutation("rounding told in bits", "measure/precision.py", "bits = torch.where(clear, bits, torch.nan)", "bits = bits", NOISE),
    Mutation("controls counted over the whole sequence", "sequences.py", "inside = [b for b in self.breaks if b < length]", "inside = [b for b in self.breaks if b < len(self)][: length - 1]", SEPARATORS),
    Mutation("controls placed behind the last token", "sequences.py", "sample(range(1, length), len(inside))", "sample(range(1, length + 1), len(inside))", SEPARATORS),
    Mutation("one placement for all lengths", "sequences.py", 'Random(f"{self.seed} {length}")', 'Random(self.seed)', SEPARATORS),
    Mutation("replays left out", "measure/compare.py", "scale=scale, replay=replay, passes", "scale=scale, replay=0, passes", COMPARE),
    Mutation("facts of the first alone", "results.py", "return first if all(each == first for each in facts) else list(facts)", "return first", COMPARE),
    Mutation("facts inside objects not told apart", "results.py", "return {name: _merged([each[name] for each in facts]) for name in first}", "return first", COMPARE),
    Mutation("joined where lengths differ", "results.py", 'join="exact"', 'join="outer"', COMPARE),
    Mutation("token counts of the first alone", "results.py", 'coords="different"', 'coords="minimal"', COMPARE),
    # windows
    Mutation("no sinks in any window", "measure/windows.py", "sliding_window(size, sink=sink)", "sliding_window(size)", WINDOWS),
    Mutation("a window at the longest", "measure/windows.py", "plain if size == whole else task.measured", "task.measured", WINDOWS),
    Mutation("the longest window without v*'s token", "measure/windows.py", "len(sequence.doubled(chosen[-1]))", "len(sequence.plain(chosen[-1]))", WINDOWS),
    Mutation("windows in the order given", "measure/windows.py", "*sorted({size for size in asked if size < whole})", "*dict.fromkeys(size for size in asked if size < whole)", WINDOWS),
    Mutation("native windows not told", "measure/windows.py", "np.nan if window is None else window", "np.nan", WINDOWS),
    # prescriptions
    Mutation("the worst separator prescribed", "measure/prescribe.py", "best = max(grid", "best = min(grid", PRESCRIBE),
    Mutation("separation as a mean", "measure/prescribe.py", "np.median(found", "np.mean(found", PRESCRIBE),
    Mutation("separation at the first block", "measure/prescribe.py", '["distance"].isel(layer=-1)', '["distance"].isel(layer=1)', PRESCRIBE),
    Mutation("a p-value that can be zero", "measure/prescribe.py", "(1 + sum(value >= best for value in control))", "sum(value >= best for value in control)", PRESCRIBE),
    Mutation("ties not as good", "measure/prescribe.py", "value >= best for", "value > best for", PRESCRIBE),
    Mutation("the best's tokens placed as the first design's", "measure/prescribe.py", "designs[best].scattered(", "next(iter(designs.values())).scattered(", PRESCRIBE),
    Mutation("chance without its seed", "measure/prescribe.py", 'f"placements {seed} {n}"', 'f"placements {n}"', PRESCRIBE),
    Mutation("a journal for any content", "measure/prescribe.py", '"content": plain.content, ', "", PRESCRIBE),
    Mutation("a journal for any lengths", "measure/prescribe.py", ', "lengths": runs.lengths}', "}", PRESCRIBE),
    Mutation("a journal for any answer", "measure/prescribe.py", "answers=task.expected(model), ", "", PRESCRIBE),
    Mutation("cost not for each content token", "measure/prescribe.py", "len(plain.plain(longest))) / longest for", "len(plain.plain(longest))) for", PRESCRIBE),
    Mutation("half an interval above", "measure/prescribe.py", "((), advantage + half,", "((), advantage,", PRESCRIBE),
    Mutation("a table that is not sorted", "measure/prescribe.py", "ascending=False", "ascending=True", PRESCRIBE),
    # tasks, answers, probes
    Mutation("hint left out", "tasks/copying.py", 'tail = f" {hint}" if hint else ""', 'tail = ""', TASKS),
    Mutation("the last digit asked for twice", "tasks/copying.py", 'LAST.replace("the last digit", "the first digit")', "LAST", TASKS),
    Mutation("1…10 without its 0", "tasks/copying.py", '["1"] * (n - 1) + ["0"]', '["1"] * n', TASKS),
    Mutation("as many zeros as ones", "tasks/counting.py", "SHARE = 0.7", "SHARE = 0.5", TASKS),
    Mutation("items by mode", "tasks/task.py", 'Random(f"{length} {seed}")', 'Random(f"{length} {seed} {mode}")', TASKS),
    Mutation("items by name", "tasks/task.py", 'Random(f"{length} {seed}")', 'Random(f"{length} {seed} {self.name}")', TASKS),
    Mutation("any number of items", "tasks/task.py", "if len(items) != length or not", "if not", TASKS),
    Mutation("v* without its last item", "tasks/task.py", "(*question.items, question.items[-1])", "question.items", TASKS),
    Mutation("a slip of the paper mended", "paper.py", "where 'xxxx' is your answer..\"", "where 'xxxx' is your answer.\"", TASKS),
    Mutation("a cut number read", "tasks/reading.py", 'if not (ended or closed) and not (found[-1].why == "read" and last[-1:] in _CLOSING):', "if False:", READING),
    Mutation("a cut answer alone read", "tasks/reading.py", 'return convert(text.strip()) if ended else Reading("", "cut")', "return convert(text.strip())", READING),
    Mutation("the first of several answers", "tasks/reading.py", 'return different.pop() if len(different) == 1 else Reading("", "several")', "return found[0]", READING),
    Mutation("the placeholder read", "tasks/reading.py", 'not _PLACEHOLDER.match(line.lstrip(_AROUND + "<")) and ', "", READING),
    Mutation("digits of any scripts", "tasks/reading.py", "if len(decimals) != 1:", "if not decimals:", READING),
    Mutation("a sequence taken for a number", "tasks/numerals.py", "LONGEST = 15", "LONGEST = 4000", READING),
    Mutation("thousands anyhow", "tasks/numerals.py", "(?:,[0-9]{3})+", "(?:,[0-9]+)+", READING),
    Mutation("two marks between thousands", "tasks/numerals.py", "(?:(?P={group})[0-9]{{3}})*", "(?:[,'_ \\u00a0][0-9]{{3}})*", TABLE),
    Mutation("7 (eight)", "tasks/numerals.py", " or value(said) != value(again)", "", TABLE),
    Mutation("any words around", "tasks/numerals.py", "pattern.fullmatch(text) for", "pattern.search(text) for", TABLE),
    Mutation("seven hundred is seven", "tasks/numerals.py", "part = max(part, 1) * 100\n", "part = max(part, 1)\n", TABLE),
    Mutation("markup joins digits", "tasks/markup.py", '"\\tanswer: \\\\1\\t"', '"\\\\1"', TABLE),
    Mutation("what follows a turn is read", "tasks/markup.py", "(text[: end.start()], True)", "(text, True)", TABLE),
    Mutation("thoughts are read", "tasks/markup.py", '.rpartition(f"</{name}>")[2]', "", TABLE),
    Mutation("an answer taken back", "tasks/reading.py", "for one in _announcements(places[-1][2], lenient)} - {found.value}", "for one in []}", TABLE),
    Mutation("another number before", "tasks/reading.py", "sentences if each not in steps[:-1]]", "sentences[-1:]]", TABLE),
    Mutation("any form as asked", "tasks/reading.py", "as_asked=_found(text, opening, ended, strict).value == found.value", "as_asked=True", TABLE),
    Mutation("echoes near anything", "tasks/echo.py", "PER_SLIP = 4", "PER_SLIP = 2", ECHO),
    Mutation("echoes without a slip", "tasks/echo.py", "PER_SLIP = 4", "PER_SLIP = 100", TASKS),
    Mutation("counts taken for echoes", "tasks/echo.py", "FAR = 10", "FAR = 1", TASKS),
    Mutation("an echo from the first item on", "tasks/echo.py", "costs = np.zeros(len(letters) + 1, dtype=int)", "costs = places.copy()", ECHO),
    Mutation("echoes of one sequence only", "tasks/echo.py", "* (len(piece) // len(whole) + 2)", "", ECHO),
    Mutation("strict is lenient", "measure/answers.py", "strict = (right & as_asked)", "strict = right", ANSWERS),
    Mutation("deciles for quartiles", "measure/answers.py", "[0.25, 0.5, 0.75]", "[0.1, 0.5, 0.9]", ANSWERS),
    Mutation("strict scores lenient", "hosted.py", "(reading.as_asked or not as_asked)", "True", HOSTED),
    Mutation("a number for a digit", "tasks/reading.py", 'if found in set("0123456789") else Reading("", "digit")', "", READING),
    Mutation("what is not read is right", "measure/answers.py", '(value == truth) & (why == "read")', '(value == truth) | (why != "read")', ANSWERS),
    Mutation("errors of what was not read", "measure/answers.py", "if value else np.nan", "if value else 0.0", ANSWERS),
    Mutation("mean over all answers", "measure/answers.py", "np.maximum(counted, 1)", "error.shape[-1]", ANSWERS),
    Mutation("another interval", "measure/answers.py", "Z**2 / (4 * of**2)", "Z**2 / (4 * of)", ANSWERS),
    Mutation("answers in any order", "measure/answers.py", "[(q.mode, q.length, q.seed) for q in answers] != list(product(modes, lengths, seeds))", "len(answers) != len(list(product(modes, lengths, seeds)))", ANSWERS),
    Mutation("values by name", "measure/answers.py", "key=_by_size", "key=str", ANSWERS),
    Mutation("a checkpoint's penalties", "model/generate.py", "plain.generation_config = GenerationConfig()", "pass", GENERATE),
    Mutation("a checkpoint's decoding lost", "model/generate.py", "plain.generation_config = own", "pass", GENERATE),
    Mutation("one end of text alone", "model/generate.py", "set(given) if isinstance(given, list | tuple)", "set(given[:1]) if isinstance(given, list | tuple)", GENERATE),
    Mutation("a cache under hooks", "model/generate.py", "use_cache=not ambient(model)", "use_cache=True", GENERATE),
    Mutation("no temperature", "model/generate.py", "logits.double() / self.temperature", "logits.double()", GENERATE),
    Mutation("uniform noise", "model/generate.py", "return -torch.empty(size, dtype=torch.float64).exponential_(generator=generator).log()", "return torch.rand(size, dtype=torch.float64, generator=generator)", GENERATE),
    Mutation("one draw for all steps", "model/generate.py", 'f"{seed} {step}"', 'f"{seed}"', GENERATE),
    Mutation("answers beyond the window of the model", "model/generate.py", "len(prompt.ids) + prompt.room > limit", "len(prompt.ids) > limit", GENERATE),
    Mutation("asked again on resuming", "measure/behave.py", "if keys[question] not in journal.found]", "]", BEHAVE),
    Mutation("answers of another prompt", "measure/behave.py", "{prompt.room} {digest(prompt.ids)}", "{prompt.room}", ASKING),
    Mutation("answers with other room", "measure/behave.py", "{prompt.room} {digest(prompt.ids)}", "{digest(prompt.ids)}", ASKING),
    Mutation("one answer counted as many", "measure/_asking.py", "if len(seeds) > 1 and not differ:", "if False:", BEHAVE),
    Mutation("more lengths are another run", "measure/_asking.py", 'not in ("call", "bos_count")', "!= 0", BEHAVE),
    Mutation("resumed under any function", "measure/_session.py", "if strange:", "if False:", ASKING),
    Mutation("hooks on some heads as on all", "model/interventions.py", "if chosen is not None:", "if False:", ASKING),
    Mutation("positions by their ends", "model/interventions.py", ", {digest(places)})", ")", ASKING),
    Mutation("any reference alike", "model/reference.py", " of {digest(reference.tolist())}", "", ASKING),
    Mutation("no opening words", "measure/_asking.py", 'opening = task.opening if opened else ""', 'opening = ""', BEHAVE),
    Mutation("a chat without its turn", "model/tokens.py", "add_generation_prompt=True", "add_generation_prompt=False", BEHAVE),
    Mutation("a probe that has seen the answer", "measure/_splits.py", "order[: self.fit], order[self.fit :]", "order[: self.fit], order[self.fit // 2 :]", PROBE),
    Mutation("draws for prompts", "measure/_splits.py", "np.unique(row, return_index=True, return_inverse=True, return_counts=True)[1:]", "(np.arange(len(row)), np.arange(len(row)), np.ones(len(row), dtype=int))", PROBE),
    Mutation("fits that grow with the draws", "measure/_splits.py", "order[: self.fit], order[self.fit :]", "order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]", PROBE),
    Mutation("always the same prompts tested", "measure/_splits.py", "np.bincount(rng.integers(len(test), size=len(test)), minlength=len(test))", "np.ones(len(test))", PROBE),
    Mutation("a control of counts", "measure/_splits.py", "table[places, items].sum(axis=1)", "table[0, items].sum(axis=1)", PROBE),
    Mutation("a control without its type", "measure/_splits.py", "table[places, items].sum(axis=1)", "rng.standard_normal(len(items))", PROBE),
    Mutation("R² about zero", "measure/_scores.py", "targets - np.average(targets, axis=0, weights=weight)", "targets", PROBE),
    Mutation("an interval of half the splits", "measure/_scores.py", "np.nanquantile(kept, [out, 1 - out], axis=0)", "np.nanquantile(kept, [1 / 4, 3 / 4], axis=0)", PROBE),
    Mutation("the control is no baseline", "measure/probe.py", "np.fmax(0, np.fmax(length, control))", "np.fmax(0, length)", JOINED),
    Mutation("twins for certain", "measure/_scores.py", "np.sqrt(1 + 1 / many)", "np.sqrt(1 / many)", PROBE),
    Mutation("twins are no baseline", "measure/_scores.py", "middle, _, high = interval(r2 - np.fmax(others, twin))", "middle, _, high = interval(r2 - others)", PROBE),
    Mutation("the normal's quantile for twins", "measure/_scores.py", "stats.t.ppf((1 + CONFIDENCE) / 2, many - 1)", "stats.norm.ppf((1 + CONFIDENCE) / 2)", PROBE),
    Mutation("one twin is enough", "measure/_scores.py", "return middle, np.full_like(high, np.nan), interval(r2 - others)[2]", "return middle, interval(r2 - np.fmax(others, twin))[1], high", PROBE),
    Mutation("a twin with the model's weights", "model/twin.py", "inner = inner.eval().requires_grad_(False)", "inner = inner.eval().requires_grad_(False); inner.load_state_dict({k.replace('._original_component', ''): v for k, v in wrapped.state_dict().items()}, strict=False)", PROBE),
    Mutation("every twin alike", "model/twin.py", "torch.manual_seed(seed)", "torch.manual_seed(0)", PROBE),
    Mutation("a penalty by training error", "theory/ridge.py", "np.maximum(1 - own, np.finfo(float).eps)[:, :, None]", "1", RIDGE),
    Mutation("a leverage without its mean", "theory/ridge.py", "1 / len(x) + shrunk", "shrunk", RIDGE),
    Mutation("predictions that run away", "theory/ridge.py", "np.clip(predicted, low - (high - low), high + (high - low))", "predicted", RIDGE),
    Mutation("nothing to find is probed", "measure/probe.py", "if len({q.truth for q in questions}) == 1:", "if False:", PROBE),
    Mutation("the length may give it away", "measure/probe.py", "if not any(data.varied):", "if False:", PROBE),
    Mutation("half is read out", "measure/_verdicts.py", "return READ, f\"{said}.\"\n    if high >= HALF:", "return READ, f\"{said}.\"\n    if False:", VERDICTS),
    Mutation("a share with an interval where nothing is drawn", "measure/_verdicts.py", "if not drawn:", "if False:", VERDICTS),
    Mutation("same bits of equal answers are collapse", "measure/_verdicts.py", "(same_bits & differ)[at]", "same_bits[at]", VERDICTS),
    Mutation("a probe without a baseline", "measure/_verdicts.py", "if high < MARGIN:", "if False:", VERDICTS),
    Mutation("a gain that may be none", "measure/_verdicts.py", "if not low > MARGIN:", "if not high > MARGIN:", VERDICTS),
    Mutation("represented by the middle", "measure/_verdicts.py", "if e.probe(\"r2_low\") >= decodable:", "if e.probe(\"r2\") >= decodable:", VERDICTS),
    Mutation("the length gives nothing away", "measure/_verdicts.py", "if low >= decodable:", "if False:", VERDICTS),
    Mutation("any insertion is a pair", "measure/collapse_vs_readout.py", "not any(star[p + extra - 1] == v[p - 1] for p in ends_alike)", "not any(True for p in ends_alike)", JOINED),
    Mutation("distance of y for that of v", "measure/collapse_vs_readout.py", '"distance": (over, gaps[0]', '"distance": (over, gaps[1]', JOINED),
    Mutation("pairs against themselves", "measure/collapse_vs_readout.py", "answers[a].text == answers[b].text", "answers[a].text == answers[a].text", JOINED),
    Mutation("a filtered answer has ended", "hosted.py", '"model_length", "content_filter")', '"model_length")', HOSTED),
    Mutation("samples as the log has them", "hosted.py", 'sorted(samples, key=lambda sample: sample.metadata["place"])', "samples", HOSTED),
    Mutation("failed runs taken", "hosted.py", 'if log.status != "success":', "if False:", HOSTED),
    Mutation("a sequence said again counts", "tasks/task.py", ' if self._echoed(question, said, found.why == "read") else found', " if False else found", TASKS),
    Mutation("answers nobody can give", "tasks/task.py", 'if found != Reading(truth, "read"):', "if False:", TASKS),
    Mutation("lengths as they come", "tasks/task.py", "for n in sorted(lengths)", "for n in lengths", TASKS),
    Mutation("another task by another joiner", "tasks/task.py", "if not (self.show is joined or _joins(self.show)):", "if False:", TASKS),
    Mutation("a line that a new one closed is open", "tasks/reading.py", "(line, bool(newline), rest)", "(line, False, rest)", READING),
    Mutation("draws for prompts", "measure/answers.py", "len(set(cell))", "len(cell)", ANSWERS),
    # statements
    Mutation("the weight before for that after", "theory/statements/softmax.py", "float(x[-1] + star[-2])", "float(x[-1] + star[-1])", STATEMENTS),
    Mutation("B.1 for any entries", "theory/statements/softmax.py", "bool(more.abs().max() <= bound)", "True", STATEMENTS),
    Mutation("B.2 without its premise", "theory/statements/softmax.py", "decays(chosen, largest)", "True", STATEMENTS),
    Mutation("B.2's mean for its largest", "theory/statements/softmax.py", "float(apart[:n].mean())", "float(apart[:n].max())", STATEMENTS),
    Mutation("B.2 at half the bound", "theory/statements/softmax.py", "right = 2 * _exp(2 * bound)", "right = 0.01 * _exp(2 * bound)", STATEMENTS),
    Mutation("sums of any length exact", "theory/statements/softmax.py", "8 * EPS + n * EPS", "8 * EPS", STATEMENTS),
    Mutation("half of B.4", "theory/statements/softmax.py", "2 * (math.e - 1) / (math.e + 1)", "(math.e - 1) / (math.e + 1)", STATEMENTS),
    Mutation("B.4 at any n", "theory/statements/softmax.py", '{"n is even": n % 2 == 0}', '{"n is even": True}', STATEMENTS),
    Mutation("B.3 without the self-weight", "theory/statements/collapse.py", "float(norms[:n].max()) * (delta + own)", "float(norms[:n].max()) * delta", STATEMENTS),
    Mutation("B.3 with unit values", "theory/statements/collapse.py", "float(norms[:n].max()) * (delta + own)", "delta + own", STATEMENTS),
    Mutation("B.3 wherever positions go", "theory/statements/collapse.py", "decays(sizes, together)", "True", STATEMENTS),
    Mutation("B.10 in every format", "theory/statements/collapse.py", "same == 1}", "True}", STATEMENTS),
    Mutation("B.6 whatever a row has", "theory/statements/markov.py", ".sum(dim=-1)[1:] >= 2", ".sum(dim=-1)[1:] >= 1", STATEMENTS),
    Mutation("B.6 counts all eigenvalues", "theory/statements/markov.py", "(a.diagonal() >= 1 - slack) & (_left(a) == 0)", "a.diagonal() >= 0", STATEMENTS),
    Mutation("B.6 counts what rounds to 1", "theory/statements/markov.py", "(a.diagonal() >= 1 - slack) & (_left(a) == 0)", "a.diagonal() >= 1 - slack", STATEMENTS),
    Mutation("B.7 for triangular ones alone", "theory/statements/markov.py", "if triangular or premise != TRIANGULAR", "if True", STATEMENTS),
    Mutation("B.8 with the first token", "theory/statements/markov.py", "torch.log1p(-_left(a)[1:] / 2)", "torch.log1p(-_left(a)[:-1] / 2)", STATEMENTS),
    Mutation("B.8 without the residual", "theory/statements/markov.py", "torch.log1p(-_left(a)[1:] / 2)", "torch.log1p(-_left(a)[1:])", STATEMENTS),
    Mutation("B.8 without its polynomial", "theory/statements/markov.py", "terms = choose + ", "terms = 0 * choose + ", STATEMENTS),
    Mutation("B.8 where nothing falls", "theory/statements/markov.py", "log_rate < 0 and log_rate - slack", "log_rate - slack", STATEMENTS),
    Mutation("B.9 under a mask", "theory/statements/counting.py", '"no causal mask": not causal', '"no causal mask": True', STATEMENTS),
    Mutation("B.9 of any layers", "theory/statements/counting.py", "fair and fair_longer", "True", STATEMENTS),
    Mutation("rows of any sum", "theory/statements/statement.py", "(off <= rounding(rows)).all()", "(off <= 1).all()", STATEMENTS),
    Mutation("rounding of half precision in every sum", "theory/statements/statement.py", "min(eps, torch.finfo(torch.float32).eps)", "eps", STATEMENTS),
    Mutation("B.9 with itself", "theory/statements/counting.py", "for _ in range(times)", "for _ in range(1)", STATEMENTS),
    Mutation("a broken premise passes", "theory/statements/statement.py", "if not all(self.premises.values()):", "if not any(self.premises.values()):", STATEMENTS),
    Mutation("positions kept", "measure/shares_and_counts.py", 'if positions == "kept" else torch.zeros(n, dtype=torch.long)', 'if positions else torch.zeros(n, dtype=torch.long)', SHARES),
    Mutation("last tokens alone", "measure/shares_and_counts.py", "few[:, [ids.index(token) for token in (*ids, *longer)]]", "torch.cat([few, many], dim=1)", SHARES),
    Mutation("a window that is no mask", "measure/shares_and_counts.py", "if len(longer) > window:", "if False:", SHARES),
    Mutation("the mask kept", "measure/shares_and_counts.py", 'if mask == "causal" else', "if mask else", SHARES),
    # journals
    Mutation("found again every time", "journal.py", "if name not in self.found:", "if True:", JOURNAL),
    Mutation("facts the file alone has", "journal.py", "for name in sorted({*one, *other}):", "for name in sorted(other):", JOURNAL),
    Mutation("facts not as they are written", "journal.py", "json.loads(json.dumps(facts, default=str))", "dict(facts)", JOURNAL),
    Mutation("findings that are not committed", "journal.py", 'database.execute("COMMIT")', "pass", JOURNAL),
    Mutation("a digest for any facts", "journal.py", "json.dumps([self.facts, name, str(text)], sort_keys=True)", "json.dumps([name, str(text)])", JOURNAL),
    Mutation("a digest for any value", "journal.py", "json.dumps([self.facts, name, str(text)], sort_keys=True)", "json.dumps([self.facts, name], sort_keys=True)", JOURNAL),
    Mutation("a digest that is not looked at", "journal.py", "if digest != self._digest(name, text):", "if False:", JOURNAL),
    Mutation("the last finding is believed", "journal.py", "INSERT OR IGNORE", "INSERT OR REPLACE", JOURNAL),
    Mutation("any database taken for a journal", "journal.py", ' or int.from_bytes(header[68:72], "big") != APPLICATION', "", JOURNAL),
    Mutation("a journal of another form", "journal.py", 'int.from_bytes(header[60:64], "big") != FORM', "False", JOURNAL),
    Mutation("a log on any file system", "journal.py", "return kind not in NETWORK", "return True", JOURNAL),
    Mutation("a refused journal is changed", "journal.py", 'if database.execute("PRAGMA quick_check")', 'database.execute("PRAGMA journal_mode = delete")\n                if database.execute("PRAGMA quick_check")', JOURNAL),
    Mutation("findings lost with a deleted journal", "journal.py", "for name, value in self.found.items()} | new", "for name, value in ()} | new", JOURNAL),
    # files
    Mutation("a file written where it stands", "files.py", "os.replace(partial, target)\n            if", "target.write_bytes(partial.read_bytes())\n            if", FILES),
    Mutation("a link replaced by a file", "files.py", "target = Path(os.path.realpath(path))", "target = Path(path)", FILES),
    Mutation("read-only files replaced", "files.py", "if not about.st_mode & 0o222 or not os.access(target, os.W_OK):", "if False:", FILES),
    Mutation("temporary files left behind", "files.py", "        _sweep(target.parent)\n", "", FILES),
    Mutation("a living writer's file removed", "files.py", "            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "", FILES),
    Mutation("permissions of the new file", "files.py", "partial.chmod(stat.S_IMODE(target.stat().st_mode))", "pass", FILES),
    Mutation("folders not tried", "files.py", "        partial, file = _partial(target.parent)\n        file.close()\n        partial.unlink(missing_ok=True)\n", "        pass\n", FILES),
    Mutation("netCDF written through HDF5", "stored.py", 'cast(memoryview, _as_dataset(result).to_netcdf(engine="h5netcdf"))', '(_as_dataset(result).to_netcdf(".x.nc", engine="h5netcdf"), open(".x.nc", "rb").read())[1]', FILES),
    Mutation("formulas in CSV", "stored.py", "isinstance(cell, str) and cell.startswith(RISKY)", "False", RESULTS),
    Mutation("line breaks bare in CSV", "stored.py", ", quoting=csv.QUOTE_NONNUMERIC", "", RESULTS),
    Mutation("outputs checked after the work", "measure/behave.py", "    resume = checked(resume)\n", "", FILES),
    Mutation("links followed", "foreign.py", "!= H5.h5l.TYPE_HARD", "== -1", FOREIGN),
    Mutation("numbers in other files", "foreign.py", "if layout.get_external_count():", "if False:", FOREIGN),
    Mutation("virtual datasets", "foreign.py", "if layout.get_layout() not in LAYOUTS:", "if False:", FOREIGN),
    Mutation("arrays of any kind", "foreign.py", "if kind.get_class() not in NUMBERS_AND_TEXT:", "if False:", FOREIGN),
    Mutation("netCDF beyond memory", "foreign.py", '    _require_memory(needed, name, "Read it on a larger machine, or save fewer values.")\n', "    pass\n", FOREIGN),
    Mutation("JSON beyond memory", "foreign.py", "    _require_memory(PARSED * size, ", "    _require_memory(0 * size, ", FOREIGN),
    Mutation("one text for many", "foreign.py", "if total > free:", "if False:", FOREIGN),
    Mutation("tensors not checked", "model/shelf.py", "if described(tensor) != entry:", "if False:", CAPTURE),
    Mutation("an index not checked", "model/shelf.py", "if written != _digest(content):", "if False:", CAPTURE),
    Mutation("refusals that do not survive", "errors.py", "return _rebuilt, (type(self), self.args), self.__dict__.copy()", "return super().__reduce__()", ERRORS),
    Mutation("control characters in a command", "reporting/page.py", "shlex.quote(word) if escape(word) == word else _written_out(word)", "shlex.quote(word)", PAGE),
    # their figures
    Mutation("a mean for the median of a change", "figures/changes.py", "x=[np.median(values)]", "x=[np.mean(values)]", CHANGEPICTURES),
    Mutation("names of changes as markup", "figures/changes.py", "html.escape(name) for", "name for", CHANGEPICTURES),
    Mutation("D at the embedding", "figures/changes.py", 'found["distance"].isel(layer=-1)', 'found["distance"].isel(layer=0)', CHANGEPICTURES),
    Mutation("the last token's share for the first's", "figures/changes.py", 'found["bound"].isel(content=0)', 'found["bound"].isel(content=-1)', CHANGEPICTURES),
    Mutation("zeros on a logarithm", "figures/changes.py", 'own[own > 0] if kind == "size" else own', "own", CHANGEPICTURES),
    Mutation("a band upside down", "figures/changes.py", "*low.values[::-1]]", "*low.values]", CHANGEPICTURES),
    Mutation("separators as markup", "figures/separators.py", "“{label(str(name))}”", "“{name}”", CHANGEPICTURES),
    Mutation("the best as the worst is high", "figures/separators.py", 'float(prescribed["separation"].max())', 'float(prescribed["separation"].min())', CHANGEPICTURES),
    Mutation("a ratio's distance from zero", "figures/separators.py", "z=np.log(shown)", "z=shown", CHANGEPICTURES),
    Mutation("the middle half as everything", "figures/separators.py", "np.quantile(values, [0.25, 0.5, 0.75])", "np.quantile(values, [0, 0.5, 1])", CHANGEPICTURES),
    Mutation("lengths without an effect drawn", "figures/separators.py", "values[np.isfinite(values)]", "np.nan_to_num(values)", CHANGEPICTURES),
    # the synthetic lab
    Mutation("another size of scores", "synthetic/layers.py", "stack.per_head**0.5", "stack.width**0.5", LAB),
    Mutation("no residual connection", "synthetic/layers.py", "z = z + self.x[:, rows] if stack.residual else z", "z = z", LAB),
    Mutation("an MLP without its norm", "synthetic/layers.py", "gelu(normed(z, stack.norm) @", "gelu(z @", LAB),
    Mutation("a mean not taken off", "synthetic/layers.py", 'if norm == "layer" else x\n', 'if norm == "rms" else x\n', LAB),
    Mutation("queries a place on", "synthetic/layers.py", "self.pack.position[rows])", "self.pack.position[rows] + 1)", LAB),
    Mutation("half a rotation backwards", "synthetic/encodings.py", "second * cos + first * sin", "second * cos - first * sin", LAB),
    Mutation("other wavelengths", "synthetic/encodings.py", "torch.arange(0, width, 2,", "torch.arange(1, width, 2,", LAB),
    Mutation("ALiBi's heads from 0", "synthetic/encodings.py", "torch.arange(1, heads + 1,", "torch.arange(0, heads,", LAB),
    Mutation("T5's ranges never wider", "synthetic/encodings.py", "torch.where(far < exact, far, wide)", "far.clamp(max=count - 1)", LAB),
    Mutation("the lab's window one too long", "synthetic/packing.py", "(distance < self.stack.window)", "(distance <= self.stack.window)", LAB),
    Mutation("a sink too many", "synthetic/packing.py", "(self.position[:reach] < self.stack.sinks)", "(self.position[:reach] <= self.stack.sinks)", LAB),
    Mutation("branches that see one another", "synthetic/packing.py", "return own | (seen & ~self.branch[:reach])", "return own | seen", LAB),
    Mutation("a prefix that is causal", "synthetic/packing.py", "seen |= first[rows, None] & first[:reach]", "pass", LAB),
    Mutation("another token repeated", "synthetic/packing.py", "torch.cat((trunk, n - 1))[order]", "torch.cat((trunk, (n - 2).clamp(min=0)))[order]", LAB),
    Mutation("layers that are all the same", "synthetic/draws.py", "default_rng((seed, stream, layer))", "default_rng((seed, stream, 0))", LAB),
    Mutation("the first token's weight for one's own", "synthetic/forward.py", "row_star.gather(-1, own)", "row_star.gather(-1, own * 0)", LAB),
    Mutation("rates where there are none", "synthetic/convergence.py", 'if stack.depth > 1 or stack.mask == "window" or stack.mlp:', "if stack.depth > 1:", LABFITS),
    Mutation("floors not heeded", "synthetic/convergence.py", "if never_decays(stack) else seen", "if False else seen", LABFITS),
    Mutation("a window that forgets", "synthetic/convergence.py", 'stack.encoding == "alibi" or stack.mask == "window"', 'stack.encoding == "alibi"', LABFITS),
    Mutation("whatever falls decays", "synthetic/convergence.py", '["variation_exponent_high"][1] < HALVING', '["variation_exponent_high"][1] < 0', LABFITS),
    Mutation("a tail that is the whole", "synthetic/fits.py", "- tail * (logs[-1] - logs[0])", "- (logs[-1] - logs[0])", LABFITS),
    Mutation("zeros among the logarithms", "synthetic/fits.py", "there = (values > 0) & values.isfinite()", "there = values.isfinite()", LABFITS),
    Mutation("noise added twice", "synthetic/variation.py", "star[:, :k] += added[:, :longest]", "star[:, :k] += 2 * added[:, :longest]", LABFITS),
    Mutation("the wrong factor taken off", "synthetic/variation.py", "/ (1 - k / n[among])", "* (1 - k / n[among])", LABFITS),
    Mutation("all of the first entries gain", "synthetic/variation.py", "share * (r + torch.expm1(-r)) / noise", "0", LABFITS),
    Mutation("the perturbed entries' share not taken off", "synthetic/variation.py", "(1 - share) * g", "g", LABFITS),
    Mutation("a sum that does not grow", "synthetic/variation.py", "* g / (1 + g)", "* g", LABFITS),
    Mutation("fitted before the law holds", "synthetic/variation.py", "max(1.0, _gain(noise))", "1.0", LABFITS),
    Mutation("too large an expectation", "synthetic/variation.py", "math.expm1(noise) / noise - 1", "math.exp(noise) / noise - 1", LABFITS),
    Mutation("the top's variation for the first layer's", "synthetic/survey.py", "-1 if layer == TOP else 0", "-1", LABFITS),
    Mutation("a native model's scale left out", "model/native.py", "scores = queries @ keys.mT / inner.scale", "scores = queries @ keys.mT", NATIVE),
    Mutation("a native model's scale inverted", "model/native.py", "scaling=1 / inner.scale", "scaling=inner.scale", NATIVE),
    Mutation("a native model's cap forgotten", "model/native.py", "softcap=cap if cap > 0 else None", "softcap=None", NATIVE),
    Mutation("the last group's keys for every head", "model/native.py", "tensor.repeat_interleave(inner.kv_repeats, dim=1)", "tensor.repeat(1, inner.kv_repeats, 1, 1)", NATIVE),
    Mutation("native logits not shown", "model/hooks.py", "if is_native(model) and any(name.endswith(SCORES) for _, name in points):", "if False:", NATIVE),
    Mutation("native attention left replaced", "model/native.py", 'vars(attn).pop("forward", None)', "pass", NATIVE),
    Mutation("our own way through attention in the fingerprint", "model/fingerprint.py", 'del attributes["forward"]', "pass", NATIVE),
    Mutation("attention to later tokens measured", "model/native.py", 'if str(model.cfg.attention_dir) != "causal":', "if False:", NATIVE),
    Mutation("hooks that a native model ignores", "model/proof.py", "        _refuse_hooks_on_scores(model)\n", "", NATIVE),
    Mutation("a native model vouched for as compared", "model/proof.py", "covers = OWN_MODULE if is_native(model) else AS_IT_STANDS", "covers = AS_IT_STANDS", NATIVE),
    Mutation("outcomes taken for tokens", "model/native.py", "return outcomes(model) == int(model.cfg.d_vocab)", "return True", NATIVE),
    Mutation("an MLP where there is none", "measure/mechanism.py", "parts += [torch.zeros_like(parts[0])] * (len(PARTS) - len(parts))", "parts += [parts[0]] * (len(PARTS) - len(parts))", NATIVE),
    Mutation("native twins all alike", "model/twin.py", "config.seed, config.init_weights = seed, True", "config.init_weights = True", NATIVE),
    Mutation("a short name for another dtype", "_typing.py", '"bf16": "bfloat16"', '"bf16": "float16"', LOAD),
    Mutation("runs made twice", "measure/precision_by_run.py", "list(dict.fromkeys(full_name(run) for run in runs))", "[full_name(run) for run in runs]", LOAD),
    Mutation("a hub waited for", "model/hub.py", "thread.join(PATIENCE)", "thread.join(20)", LOAD),
    Mutation("a proxy taken for no hub", "model/hub.py", "if urllib.request.getproxies() or not address.hostname:", "if not address.hostname:", LOAD),
    Mutation("the name that was typed suggested", "model/load.py", "if text in names:", "if False:", LOAD),
    Mutation("a slip told late", "cli/_app.py", "    refuse_words_of(model, texts)\n", "", "tests/test_cli.py"),
    Mutation("separators to try not looked at", "cli/mitigations.py", "texts=[*of.texts, *separators]", "texts=of.texts", "tests/test_cli.py"),
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
    wanted = [m for m in MUTATIONS if len(sys.argv) < 2 or sys.argv[1] in f"{m.what} {m.module}"]
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
