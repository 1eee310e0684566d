from . import (
    attention_paths,
    errors,
    example_models,
    figures,
    hooks,
    prompts,
    results,
    synthetic,
    tasks,
    theorems,
)
from .bars import quiet
from .measure.answers.answer_by_layer import answer_by_layer
from .measure.answers.collapse_vs_readout import collapse_vs_readout
from .measure.answers.diagnose import diagnose
from .measure.answers.evaluate_task import evaluate_task
from .measure.answers.probe import probe
from .measure.answers.sublayer_effects import sublayer_effects
from .measure.answers.top_tokens import top_tokens
from .measure.collapse.distance import collapse
from .measure.collapse.distinguishable_lengths import distinguishable_lengths
from .measure.collapse.mechanism import collapse_mechanism
from .measure.collapse.separator_ablation import separator_ablation
from .measure.collapse.tokenization import repeat_tokenization
from .measure.models.blocks_to_keep import blocks_to_keep
from .measure.models.compare_models import compare_models
from .measure.models.damage_by_block import damage_by_block
from .measure.remedies.compare_interventions import compare_interventions
from .measure.squashing.bound import certified_bound, path_bound
from .measure.squashing.bound_vs_jacobian import bound_vs_jacobian
from .measure.squashing.jacobians.blocks import jacobian
from .measure.squashing.jacobians.jacobian import jacobian_norms
from .measure.squashing.knockout import knockout_effect
from .measure.squashing.needle_sensitivity import needle_sensitivity
from .measure.squashing.profiles.profile import influence_by_distance, token_influence
from .measure.squashing.profiles.states import head_statistics
from .measure.squashing.substitution import substitution_effect
from .measure.squashing.walks import attention_sinks
from .model.applied import applied
from .model.loading.load import load
from .model.loading.quantize_weights import quantize_weights
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
    "answer_by_layer",
    "applied",
    "attention_paths",
    "attention_sinks",
    "blocks_to_keep",
    "bound_vs_jacobian",
    "capture",
    "certified_bound",
    "collapse",
    "collapse_mechanism",
    "collapse_vs_readout",
    "compare_interventions",
    "compare_models",
    "compare_report",
    "damage_by_block",
    "diagnose",
    "distinguishable_lengths",
    "errors",
    "evaluate_task",
    "example_models",
    "figures",
    "head_statistics",
    "hooks",
    "influence_by_distance",
    "jacobian",
    "jacobian_norms",
    "knockout_effect",
    "lengths",
    "load",
    "needle_sensitivity",
    "paper",
    "path_bound",
    "probe",
    "prompts",
    "quantize_weights",
    "quiet",
    "repeat_tokenization",
    "report",
    "results",
    "separator_ablation",
    "squash_map",
    "sublayer_effects",
    "substitution_effect",
    "synthetic",
    "tasks",
    "theorems",
    "token_influence",
    "top_tokens",
]
