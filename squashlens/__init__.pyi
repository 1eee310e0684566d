from . import (
    errors,
    figures,
    hooks,
    paths,
    prompts,
    results,
    statements,
    synthetic,
    tasks,
    zoo,
)
from .bars import quiet
from .measure.answers.accuracy import accuracy, top_tokens
from .measure.answers.answer_by_layer import answer_by_layer
from .measure.answers.collapse_vs_readout import collapse_vs_readout
from .measure.answers.evaluate import evaluate
from .measure.answers.probe import probe
from .measure.answers.sublayer_effect import sublayer_effect
from .measure.answers.verdict import verdict
from .measure.collapse.distance import collapse
from .measure.collapse.mechanism import collapse_mechanism
from .measure.collapse.separation import separation
from .measure.collapse.separator_ablation import separator_ablation
from .measure.collapse.tokenization import repeat_tokenization
from .measure.models.blocks_to_keep import blocks_to_keep
from .measure.models.compare_models import compare_models
from .measure.models.damage_by_block import damage_by_block
from .measure.remedies.compare import compare
from .measure.squashing.bound import certified_bound, path_bound
from .measure.squashing.jacobians.blocks import jacobian
from .measure.squashing.jacobians.jacobian import jacobian_norms
from .measure.squashing.knockout import knockout_effect
from .measure.squashing.needle import needle
from .measure.squashing.profiles.profile import influence, influence_by_distance
from .measure.squashing.profiles.states import attention_heads
from .measure.squashing.sensitivity import sensitivity
from .measure.squashing.substitution import substitution_effect
from .measure.squashing.walks import attention_sinks
from .model.applied import applied
from .model.loading.load import load
from .model.loading.rounded import rounded
from .pages.compare_page import compare_report
from .pages.lengths_page import lengths
from .pages.maps.view import squash_map
from .pages.paper.write import paper
from .pages.report_page import report
from .run.captures.capture import Capture, capture
from .study.study import Study

__version__: str
__all__ = [
    "Capture",
    "Study",
    "accuracy",
    "answer_by_layer",
    "applied",
    "attention_heads",
    "attention_sinks",
    "blocks_to_keep",
    "capture",
    "certified_bound",
    "collapse",
    "collapse_mechanism",
    "collapse_vs_readout",
    "compare",
    "compare_models",
    "compare_report",
    "damage_by_block",
    "errors",
    "evaluate",
    "figures",
    "hooks",
    "influence",
    "influence_by_distance",
    "jacobian",
    "jacobian_norms",
    "knockout_effect",
    "lengths",
    "load",
    "needle",
    "paper",
    "path_bound",
    "paths",
    "probe",
    "prompts",
    "quiet",
    "repeat_tokenization",
    "report",
    "results",
    "rounded",
    "sensitivity",
    "separation",
    "separator_ablation",
    "squash_map",
    "statements",
    "sublayer_effect",
    "substitution_effect",
    "synthetic",
    "tasks",
    "top_tokens",
    "verdict",
    "zoo",
]
