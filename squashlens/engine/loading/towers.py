"""The language model inside a multimodal checkpoint (Gemma 3 4B, Mistral 3, Llama 4, …), as a model of its own.

transformers can open such a checkpoint as a language model alone, but then leaves weights random whose names it does
not find, without an error. So the whole model is loaded, every tensor of its checkpoint is accounted for, and the
language model is taken out of it, module by module. Nothing is renamed or copied. `load` compares it on text with the
whole model.
"""

from typing import Any

from squashlens.engine.loading.packaged import ORIGIN
from squashlens.errors import ModelAccessError

TEXT = ("ForCausalLM", "LMHeadModel")  # how the names of classes end that are language models alone


def auto_class(config: Any) -> Any:
    """The class of transformers that builds the model, with its image and audio parts; `None` if it is no decoder."""
    from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

    if config.is_encoder_decoder:
        return None
    if config.architectures[0].endswith(TEXT):
        return AutoModelForCausalLM
    return AutoModelForMultimodalLM if type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING else None


def language_model_of(whole: Any) -> Any:
    """The language model inside a multimodal model, with the same modules; any other model as it is.

    It is found by the classes that transformers has for the text configuration.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    config, name = whole.config.get_text_config(), type(whole).__name__
    if name.endswith(TEXT):
        return whole
    try:
        with init_empty_weights(include_buffers=False):
            tower = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    except ValueError as error:
        raise ModelAccessError(
            f"transformers has no language model for the text configuration of {name} ({config.model_type!r}).",
            "Use a checkpoint of a language model, or another multimodal model.",
        ) from error
    complete = [module for module in whole.modules() if type(module) is type(tower)]
    bases = [module for module in whole.modules() if type(module) is type(tower.base_model)]
    head = whole.get_output_embeddings()
    if len(complete) == 1:
        tower = complete[0]
    elif len(bases) == 1 and head is not None:
        setattr(tower, tower.base_model_prefix, bases[0])
        tower.set_output_embeddings(head)
    if any(parameter.is_meta for parameter in tower.parameters()):
        raise ModelAccessError(
            f"No part of {name} is the language model that transformers builds from its text configuration "
            f"({type(tower).__name__}).",
            "Use a checkpoint of a language model, or another multimodal model.",
        )
    tower.config.architectures = [type(tower).__name__]
    tower.config._commit_hash = whole.config._commit_hash
    tower.generation_config = whole.generation_config
    if hasattr(whole, "hf_device_map"):
        tower.hf_device_map = whole.hf_device_map
    if getattr(whole.config, "quantization_config", None) is not None:
        tower.config.quantization_config = whole.config.quantization_config
    setattr(tower.config, ORIGIN, {"note": f"language model of {name}"})
    return tower.eval()
