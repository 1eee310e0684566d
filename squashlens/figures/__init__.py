"""Figures: they draw the results they are given, in one theme, and compute nothing."""

from squashlens.figures.attribution import attribution
from squashlens.figures.behaviour import accuracy_by_length, error_by_length
from squashlens.figures.changes import changes, windows
from squashlens.figures.collapse import collapse_curve, collapse_heatmap, collapse_panels
from squashlens.figures.composition import composition
from squashlens.figures.frequencies import answer_frequencies
from squashlens.figures.ladder import ladder
from squashlens.figures.mechanism import mechanism
from squashlens.figures.needle import needle
from squashlens.figures.paths import depth_limit, hops, strongest_paths
from squashlens.figures.precision import bits_needed, runs
from squashlens.figures.readout import collapse_vs_readout, probe
from squashlens.figures.separators import from_block_map, layer_trace, prescription, retained_by_kind
from squashlens.figures.statements import statements
from squashlens.figures.synthetic import survey, synthetic_convergence, synthetic_total_variation
from squashlens.figures.tokenisation import splits, tokenisation

__all__ = [
    "accuracy_by_length",
    "answer_frequencies",
    "attribution",
    "bits_needed",
    "changes",
    "collapse_curve",
    "collapse_heatmap",
    "collapse_panels",
    "collapse_vs_readout",
    "composition",
    "depth_limit",
    "error_by_length",
    "from_block_map",
    "hops",
    "ladder",
    "layer_trace",
    "mechanism",
    "needle",
    "prescription",
    "probe",
    "retained_by_kind",
    "runs",
    "splits",
    "statements",
    "strongest_paths",
    "survey",
    "synthetic_convergence",
    "synthetic_total_variation",
    "tokenisation",
    "windows",
]
