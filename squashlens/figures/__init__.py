"""Figures of results. Each function draws the result of one measurement and returns a plotly figure.

`of` draws any result with its usual figure. Several results, by label, become panels of one figure, and `panels` puts
any figures on one page. `styled` changes theme, size, fonts, title, legend and colours of a figure, and `save` writes
it as PDF, SVG, PNG, HTML or JSON.
"""

from squashlens.figures.answers import (
    answer_frequencies,
    task_accuracy,
    task_error,
)
from squashlens.figures.by_distance import influence_by_distance, needle_sensitivity
from squashlens.figures.collapse import (
    changes,
    collapse_curve,
    collapse_heatmap,
    collapse_mechanism,
    repeat_tokenization,
    retained_by_kind,
    synthetic_convergence,
    synthetic_total_variation,
)
from squashlens.figures.drawing.saving import save
from squashlens.figures.drawing.style import styled
from squashlens.figures.models import damages, kept_blocks, lost_answers, lost_shares
from squashlens.figures.paths import composition, depth_limit, hops, strongest_paths
from squashlens.figures.readouts import (
    answer_curve,
    answer_way,
    answers_by_group,
    collapse_vs_readout,
    probe,
    separation_curve,
    sublayer_repairs,
    verdict_margins,
    verdict_odds,
)
from squashlens.figures.tokens import (
    attention_sinks,
    attribution,
    bound_against_jacobian,
    by_token,
    head_statistics,
    jacobian,
    substitution,
    token_influence,
    token_map,
    top_tokens,
)
from squashlens.figures.usual import of, panels

__all__ = [
    "answer_curve",
    "answer_frequencies",
    "answer_way",
    "answers_by_group",
    "attention_sinks",
    "attribution",
    "bound_against_jacobian",
    "by_token",
    "changes",
    "collapse_curve",
    "collapse_heatmap",
    "collapse_mechanism",
    "collapse_vs_readout",
    "composition",
    "damages",
    "depth_limit",
    "head_statistics",
    "hops",
    "influence_by_distance",
    "jacobian",
    "kept_blocks",
    "lost_answers",
    "lost_shares",
    "needle_sensitivity",
    "of",
    "panels",
    "probe",
    "repeat_tokenization",
    "retained_by_kind",
    "save",
    "separation_curve",
    "strongest_paths",
    "styled",
    "sublayer_repairs",
    "substitution",
    "synthetic_convergence",
    "synthetic_total_variation",
    "task_accuracy",
    "task_error",
    "token_influence",
    "token_map",
    "top_tokens",
    "verdict_margins",
    "verdict_odds",
]


def __dir__() -> list[str]:
    return list(__all__)
