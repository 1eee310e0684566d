"""Load a model: bundled, from a local folder, or from the Hugging Face hub; prove it; hand it out.

Raw weights, eager attention, eval mode, no gradients on parameters, safetensors only, no remote code.
"""

import difflib
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from squashlens import zoo
from squashlens._typing import SHORT, Bridge, Quantised, full_name, shown
from squashlens.arguments import validated
from squashlens.errors import InputError, ModelAccessError, SquashlensError
from squashlens.model.checkpoint import AGAIN, commit_of, read_checkpoint, refuse_adapter
from squashlens.model.complete import require_complete, require_finite
from squashlens.model.folder import require_plausible, require_readable
from squashlens.model.hub import access_error, require_reachable
from squashlens.model.memory import available, device_named, human, require_room
from squashlens.model.proof import TOLERANCE, accept_unverified, prove, shared_copy
from squashlens.model.quantised import require_quantiser, round_weights, torchao_hushed
from squashlens.model.start import start_of

# Decoder-only models people ask for, so that a slip in a name can be mended offline.
WELL_KNOWN = (
    "google/gemma-2b",
    "google/gemma-2b-it",
    "google/gemma-7b",
    "google/gemma-7b-it",
    "google/gemma-2-2b",
    "google/gemma-2-2b-it",
    "google/gemma-2-9b",
    "google/gemma-3-270m",
    "google/gemma-3-1b-pt",
    "google/gemma-3-1b-it",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-0.6B",
    "allenai/OLMo-2-0425-1B",
    "EleutherAI/pythia-70m",
    "EleutherAI/pythia-410m",
    "openai-community/gpt2",
    "gpt2",
)


@validated
def load(
    name: str | Path,
    *,
    device: str | torch.device | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    dtype: torch.dtype | str = torch.float32,
    quantise: Quantised | None = None,
    revision: str | None = None,
    verify: bool = True,
    progress: bool = True,
) -> Bridge:
    """Open a decoder-only model as a `TransformerBridge` and prove that it is right.

    `name` is a bundled model (``"tiny-gemma"``), a local folder, or a Hugging Face name. `device` defaults to
    CUDA where there is one; `device_map` in its place spreads the blocks over several devices, as accelerate has
    it (``"auto"``, ``"balanced"``, or a device for each module). `dtype` is that of the run, by name (``"bfloat16"``,
    ``"bf16"``) or as PyTorch has it: float32 unless said otherwise, whatever the checkpoint's. The proof (logits,
    residual streams and patterns against the plain model; every pattern and norm-scale hook live) can be left out with
    ``verify=False``; results then carry *unverified*.

    ``quantise="int8"`` keeps the blocks' matrices in eight bits, one scale for each output channel, and leaves
    embeddings, output head and activations in `dtype`; it needs the extra ``squashlens[quant]``. What is proved and
    measured is the rounded model; results say so. Weights are loaded in `dtype` first, and so that is what must fit.

    The weights must be those that config.json describes. Missing, additional and wrongly shaped tensors are refused,
    also with ``verify=False``; so are integers without a quantization_config, NaN and infinite entries, a class that
    `architectures` does not name, and an adapter beside the weights. Tied weights may be stored once. Old causal
    masks and rotary frequencies may be stored if they are the model's own. The experts of a mixture run one after the
    other, which every dtype allows.

    Refuses: unknown names (with near ones), gated models without a token (with the steps to take), encoders,
    checkpoints without safetensors or with damaged files, models that do not fit, are offloaded or cannot be quantised,
    and any that fails the proof.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> model.cfg.n_layers
    6
    """
    if device is not None and device_map is not None:
        raise InputError("device= and device_map= both say where the model goes.", "Give one of them.")
    device = device_named(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
    dtype = _dtype_to_run_in(dtype)
    source = _resolve(name)
    require_quantiser(quantise, dtype)
    if not Path(source).is_dir():
        require_reachable(source, revision, _nearest(source))
    with torchao_hushed(), _transformers_hushed(progress):
        if Path(source).is_dir():
            require_readable(Path(source))
        config = _open_config(source, revision)
        _require_decoder(config, source)
        require_plausible(config, source, dtype, device)
        empty = _on_no_device(config, source)
        if device_map is None:  # else accelerate places it, and says where it does not fit
            _require_fit(empty, source, device, dtype, progress)
        try:
            return _bridge(source, config, device, device_map, dtype, quantise, revision, verify)
        except (SquashlensError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, KeyError, IndexError, AttributeError, ValueError, AssertionError) as error:
            said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            raise ModelAccessError(
                f"{source} cannot be run in {str(dtype).removeprefix('torch.')} as its files describe it ({said}).",
                "Check config.json and the other files of the folder, or load it in another dtype.",
            ) from error


@contextmanager
def _transformers_hushed(progress: bool) -> Iterator[None]:
    """The warnings and progress bars of transformers are the whole process's: off while loading, then as they were.

    What its loading report warns of is refused here, with the cause; so are weights that accelerate offloads.
    """
    from transformers.utils import logging as of_transformers

    of_accelerate = logging.getLogger("accelerate")
    bars, verbosity, level = (
        of_transformers.is_progress_bar_enabled(),
        of_transformers.get_verbosity(),
        of_accelerate.level,
    )
    if not progress:
        of_transformers.disable_progress_bar()
    of_transformers.set_verbosity_error()
    of_accelerate.setLevel(logging.ERROR)
    try:
        yield
    finally:
        of_transformers.set_verbosity(verbosity)
        of_accelerate.setLevel(level)
        if bars:
            of_transformers.enable_progress_bar()


def _resolve(name: str | Path) -> str:
    """A bundled name or folder as a path; anything else is left to the hub."""
    text = str(name)
    if not text.strip():
        raise ModelAccessError(f"name={text!r} is empty.", _nearest(text))
    if text in zoo.bundled():
        return str(zoo.folder(text))
    path, is_folder = _folder(text)
    if is_folder:
        if not (path / "config.json").is_file():
            refuse_adapter(str(path), None)
            raise ModelAccessError(f"{path} holds no config.json.", "Give the folder that `save_pretrained` wrote.")
        return str(path.resolve())  # one name for a folder, however the path to it is written
    looks_local = isinstance(name, Path) or path.is_absolute() or text.startswith((".", "~"))
    if looks_local or text.count("/") > 1:
        raise ModelAccessError(f"There is no folder {text!r}.", _nearest(text))
    if difflib.get_close_matches(text.lower(), zoo.bundled(), cutoff=0.8):
        raise ModelAccessError(f"There is no model {text!r}.", _nearest(text))
    return text


def _folder(text: str) -> tuple[Path, bool]:
    """The path that a name is of, and whether there is a folder of it that may be read."""
    try:
        path = Path(text).expanduser()
        is_folder = path.is_dir()
        if is_folder:
            os.listdir(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a home directory of no such user
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
        raise ModelAccessError(
            f"{shown(text)} cannot be opened as a folder ({reason}).", "Check the path, and that you may read it."
        ) from error
    return path, is_folder


def _nearest(text: str) -> str:
    names = (*zoo.bundled(), *WELL_KNOWN)
    lower = {n.lower(): n for n in names} | {n.split("/")[-1].lower(): n for n in names}
    if text in names:  # which was spelled rightly
        return ""
    near = difflib.get_close_matches(text.lower(), lower, n=3, cutoff=0.6)
    found = list(dict.fromkeys(lower[n] for n in near))
    if found:
        return f"Did you mean {' or '.join(repr(n) for n in found)}?"
    return f"Bundled: {', '.join(zoo.bundled())}. Else give a local folder or a Hugging Face name."


def _open_config(source: str, revision: str | None) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except Exception as error:
        raise access_error(source, error, _nearest(source)) from error


def _require_decoder(config: Any, source: str) -> None:
    named = getattr(config, "architectures", None)
    if not isinstance(named, list) or not named or not all(isinstance(name, str) for name in named):
        raise ModelAccessError(
            f"config.json of {source} names no class under architectures, so nothing says which model the weights are.",
            'Add the class that was saved, for instance "architectures": ["LlamaForCausalLM"].',
        )
    causal = named[0].endswith(("ForCausalLM", "LMHeadModel")) and not getattr(config, "is_encoder_decoder", False)
    if not causal or named[0].startswith(("Bert", "Roberta", "Electra", "XLMRoberta")):
        raise ModelAccessError(
            f"{source} is {named[0]}, not a decoder-only language model.",
            "The measurements need causal attention over text alone: use a …ForCausalLM model.",
        )


def _on_no_device(config: Any, source: str) -> Any:
    """The model without its weights; refused if transformers builds another class than the checkpoint's."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    try:
        with init_empty_weights():
            empty = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise access_error(source, error, _nearest(source)) from error
    built = type(empty).__name__
    own_code = str((getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM", built)).split(".")[-1]
    if own_code != built:  # code in the checkpoint; where it names a class of transformers, that class is taken
        raise ModelAccessError(
            f"{source} wants to run code of its own ({own_code}).",
            "squashlens does not; use a model built into transformers.",
        )
    if built not in config.architectures:
        raise ModelAccessError(
            f"transformers builds {built} for {source} (model_type {config.model_type!r}), and its config.json names "
            f"{', '.join(config.architectures)}.",
            "Correct model_type or architectures in config.json, or use a model whose class transformers has.",
        )
    empty.tie_weights()  # else a tied output head counts twice
    return empty


def _dtype_to_run_in(given: torch.dtype | str) -> torch.dtype:
    named = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCE}
    dtype = named.get(full_name(given)) if isinstance(given, str) else given
    if dtype not in TOLERANCE:
        near = _dtype_meant(given, (*named, *SHORT)) if isinstance(given, str) else None
        meant = "" if near is None else f"Did you mean {near!r}? "
        allowed = ", ".join((*named, *SHORT))
        raise InputError(f"dtype={shown(given)} is not one to run in.", f"{meant}Use one of {allowed}.")
    return dtype


def _dtype_meant(given: str, allowed: Iterable[str]) -> str | None:
    """The name that is nearest to one that PyTorch or somebody else has for a dtype."""
    plain = given.strip().lower().removeprefix("torch.")
    others = {"half": "float16", "float": "float32", "double": "float64", "brain": "bfloat16"}
    return next(iter(difflib.get_close_matches(others.get(plain, plain), list(allowed), n=1, cutoff=0.6)), None)


def _require_fit(empty: Any, source: str, device: torch.device, dtype: torch.dtype, progress: bool) -> None:
    """Count the parameters, print the size, refuse what cannot fit."""
    count = sum(p.numel() for p in empty.parameters())
    size = count * dtype.itemsize
    label = Path(source).name if Path(source).is_dir() else source
    kind = str(dtype).removeprefix("torch.")
    if progress:
        free = human(available(device))
        print(f"{label}: {count / 1e6:,.1f} M parameters, {human(size)} in {kind}; {device} has {free} free")
    require_room(size, device, f"{label} in {kind}", "Use a smaller model, dtype=torch.bfloat16, or a larger device.")


def _bridge(
    source: str, config: Any, device: torch.device, device_map: Any, dtype: torch.dtype,
    quantise: Quantised | None, revision: str | None, verify: bool,
) -> Bridge:  # fmt: skip
    inner = _plain(source, config, device_map, dtype, revision)
    inner = (inner if device_map is not None else inner.to(device)).eval().requires_grad_(False)
    if quantise is not None:  # before the plain copy, so that the proof compares like with like
        round_weights(inner, quantise)
    plain = shared_copy(inner) if verify else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            commit = inner.config._commit_hash or revision
            model = _wrap(inner, source, commit, device, dtype)
            start_of(model, commit)
        except (ValueError, NotImplementedError) as error:
            raise _not_bridged(inner, error, quantise) from error
    model.eval().requires_grad_(False)
    if plain is None:
        accept_unverified(model)
    else:
        prove(model, plain)
    return model


def _plain(source: str, config: Any, device_map: Any, dtype: torch.dtype, revision: str | None) -> Any:
    """The Hugging Face model, with every weight from the checkpoint."""
    from transformers import AutoModelForCausalLM

    try:
        stored = read_checkpoint(source, revision, config)
        commit = None if Path(source).is_dir() else commit_of(stored)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            revision=commit or revision,
            dtype=dtype,
            device_map=device_map,
            attn_implementation="eager",
            experts_implementation="eager",  # the faster grouped products have no float64 and no batched derivative
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # so that they are in the report, and refused with everything else
            output_loading_info=True,
        )
    except ModelAccessError:
        raise
    except RuntimeError as error:  # the experts of a mixture, say, which are stored one by one and stacked
        if "conversion" not in str(error):
            raise
        raise ModelAccessError(
            f"The weights of {source} cannot be stacked into those of {config.architectures[0]} as its config.json "
            "describes it: some are missing, left over or of another shape.",
            f"Check that config.json belongs to these weights. {AGAIN}",
        ) from error
    except (OSError, ValueError, ImportError) as error:
        raise access_error(source, error, _nearest(source)) from error
    model, report = loaded
    require_finite(model, source)
    require_complete(model, report, stored, source)
    model.config._commit_hash = commit  # for the provenance: a branch names other weights tomorrow
    return model


def _not_bridged(inner: Any, error: Exception, quantise: Quantised | None) -> ModelAccessError:
    name = type(inner).__name__
    if quantise is not None and isinstance(error, NotImplementedError):  # which names an operator that torchao lacks
        return ModelAccessError(
            f"TransformerLens splits weights of {name} that stay in one piece in {quantise}.",
            "Load it without quantise=, with dtype=torch.bfloat16 if it does not fit.",
        )
    return ModelAccessError(
        f"TransformerLens cannot bridge {name} ({str(error).splitlines()[0]}).", "Use a family that it supports."
    )


def _wrap(inner: Any, source: str, revision: str | None, device: torch.device, dtype: torch.dtype) -> Bridge:
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    folder = Path(source)
    files = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
    if folder.is_dir() and not any((folder / f).is_file() for f in files):
        # The public way would invent an empty tokenizer for some families and fail for others.
        return build_bridge_from_module(
            inner, type(inner).__name__, hf_config=inner.config, tokenizer=None, model_name=source
        )
    return TransformerBridge.boot_transformers(source, hf_model=inner, device=device, dtype=dtype, revision=revision)
