"""Figures of results. Each function draws the result of one measurement and returns a plotly figure.

`of` draws any result with its usual figure. Several results, by label, become panels of one figure, and `panels` puts
any figures on one page. `styled` changes theme, size, fonts, title, legend and colours of a figure, and `save` writes
it as PDF, SVG, PNG, HTML or JSON.
"""

from squashlens.figures.answers.accuracy import accuracy_by_length, error_by_length
from squashlens.figures.answers.frequencies import answer_frequencies
from squashlens.figures.answers.readout import collapse_vs_readout, probe
from squashlens.figures.collapse.curves import collapse_curve, collapse_heatmap
from squashlens.figures.collapse.mechanism import mechanism
from squashlens.figures.collapse.precision import bits_needed, runs
from squashlens.figures.collapse.separators import from_block_map, layer_trace, retained_by_kind, separator_search
from squashlens.figures.collapse.tokenization import splits, tokenization
from squashlens.figures.drawing.saving import save
from squashlens.figures.drawing.style import styled
from squashlens.figures.remedies.bench import remedies
from squashlens.figures.remedies.changes import changes
from squashlens.figures.squashing.attribution import attribution
from squashlens.figures.squashing.audit import audit
from squashlens.figures.squashing.jacobian import jacobian
from squashlens.figures.squashing.needle import needle
from squashlens.figures.squashing.paths import composition, depth_limit, hops, strongest_paths
from squashlens.figures.squashing.profile import profile
from squashlens.figures.squashing.tokens import by_token, substitution, token_map, top_tokens
from squashlens.figures.theory.statements import statements
from squashlens.figures.theory.synthetic import survey, synthetic_convergence, synthetic_total_variation
from squashlens.figures.usual import of, panels

__all__ = [
    "accuracy_by_length",
    "answer_frequencies",
    "attribution",
    "audit",
    "bits_needed",
    "by_token",
    "changes",
    "collapse_curve",
    "collapse_heatmap",
    "collapse_vs_readout",
    "composition",
    "depth_limit",
    "error_by_length",
    "from_block_map",
    "hops",
    "jacobian",
    "layer_trace",
    "mechanism",
    "needle",
    "of",
    "panels",
    "probe",
    "profile",
    "remedies",
    "retained_by_kind",
    "runs",
    "save",
    "separator_search",
    "splits",
    "statements",
    "strongest_paths",
    "styled",
    "substitution",
    "survey",
    "synthetic_convergence",
    "synthetic_total_variation",
    "token_map",
    "tokenization",
    "top_tokens",
]


def __dir__() -> list[str]:
    return [*__all__]
