"""What every measurement does first and last: check the model and prompt, label and sign the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bos, Bridge, Target
from squashlens.errors import InputError
from squashlens.journal import Journal
from squashlens.model import proof, registry
from squashlens.model.anatomy import check_layer, device_of, dtype_of, n_blocks
from squashlens.model.capture import Capture, Given
from squashlens.model.hooks import ambient, unnamed
from squashlens.model.quantised import stored_as
from squashlens.model.repeatable import require_repeatable
from squashlens.model.start import start_of
from squashlens.model.streamed import implementation
from squashlens.model.surroundings import replaced_functions
from squashlens.model.tokens import count_bos, display_tokens, tokenizer_digest, tokens
from squashlens.results import Variable, attributes, position_coords, signed, versions


@dataclass(frozen=True)
class Session:
    """A sound model with a checked prompt, and the means to label what comes out."""

    model: Bridge
    ids: Int[Tensor, "prompt position"]
    facts: Mapping[str, Any]
    capture: Capture | None = None

    @classmethod
    def start(cls, model: object, prompts: Given, bos: Bos, function: str, **arguments: Any) -> "Session":
        """Check model and prompt; note what the provenance will say."""
        sound = proof.require_sound(model)
        held = prompts if isinstance(prompts, Capture) else None
        ids = tokens(sound, prompts.ids if isinstance(prompts, Capture) else prompts, bos="as-given" if held else bos)
        config = getattr(sound.original_model, "config", None)
        facts = {
            "model": model_name(sound),
            "revision": getattr(config, "_commit_hash", None),
            "architecture": type(sound.original_model).__name__,
            "fingerprint": registry.fingerprint_of(sound),
            "proof": proof.status(sound),
            "dtype": str(dtype_of(sound)).removeprefix("torch."),
            "matmul_precision": torch.get_float32_matmul_precision(),  # below "highest" float32 products are rounded
            "quantised": stored_as(sound),
            "device": str(device_of(sound)),
            "attention_implementation": implementation(sound),
            "bos_count": count_bos(sound, ids),
            "bos_rule": start_of(sound).rule,
            "ambient_hooks": ambient(sound),
            "replaced_functions": replaced_functions(sound),
            "versions": versions(),
            "call": {"function": function, "bos": bos} | arguments,
        }
        if held is not None:
            held.require_current(sound, str(facts["fingerprint"]))
        require_repeatable(sound, ids)
        return cls(sound, ids, facts, held)

    def journal(self, path: str | Path | None, facts: Mapping[str, Any]) -> Journal:
        """A file to go on from; refused under hooks that another of the same name could be taken for."""
        strange = [] if path is None else list(unnamed(self.model))
        if strange:
            raise InputError(
                f"{strange[0].partition(' ')[2]}: resume= cannot tell this hook from another of that name.",
                "Put the function into a `squashlens.Hook` whose name says all that it does, or leave resume= out.",
            )
        return Journal(path, {**facts, "tokenizer": tokenizer_digest(self.model)})

    @property
    def positions(self) -> int:
        return self.ids.shape[1]

    def query(self, query: int) -> int:
        """A query position, counted from the end if negative; refused outside the prompt."""
        n = self.positions
        if isinstance(query, bool) or not isinstance(query, int) or not -n <= query < n:
            raise InputError(f"query={query!r} is not a position.", f"The prompt has positions 0 to {n - 1}.")
        return query % n

    def spans(self, source: int, target: Any) -> dict[Target, int]:
        """Each target with the layer it stands above, y counting as L; refused unless source lies below."""
        bottom = check_layer(source, self.model, "source")
        targets = target if isinstance(target, Sequence) and not isinstance(target, str) else [target]
        if not targets:
            raise InputError("target is an empty list.", "Name at least one target.")
        spans: dict[Target, int] = {}
        for to in targets:
            top = n_blocks(self.model) if to == "y" else check_layer(to, self.model, "target")
            if bottom > top or (bottom == top and to != "y"):
                raise InputError(
                    f"source={source} is not below target={to!r}.", "Choose a source layer under the target."
                )
            spans[cast(Target, to)] = top
        return spans

    def by_target(self, target: Target | Sequence[Target], found: Mapping[Target, xr.DataArray]) -> xr.DataArray:
        """The one result of one target, or those of a list along a leading `target` dimension."""
        if isinstance(target, int | str):
            return found[cast(Target, target)]
        names = xr.Variable("target", [str(to) for to in found])
        return cast(xr.DataArray, xr.concat(list(found.values()), dim=names, combine_attrs="override"))

    def label(self, values: Tensor, name: str, long_name: str, units: str, **extra: Any) -> xr.DataArray:
        """Values of shape (prompt, position) as a DataArray; one prompt loses the `prompt` dimension."""
        dims, coords = self.coords()
        array = values.detach().cpu().numpy()
        return xr.DataArray(
            array[0] if len(self.ids) == 1 else array,
            dims=dims,
            coords=coords,
            name=name,
            attrs=attributes(long_name, units, {**self.facts, **extra}),
        )

    def dataset(self, long_name: str, coords: Mapping[str, Any], variables: Mapping[str, Variable]) -> xr.Dataset:
        """Named variables, each (dimensions, values, long name, units), as one signed Dataset."""
        plain = {name: (dims, _numpy(values), text, unit) for name, (dims, values, text, unit) in variables.items()}
        return signed(long_name, coords, plain, self.facts)

    def coords(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        ids = self.ids.cpu().numpy().astype(np.int64)
        return position_coords(ids, display_tokens(self.model, self.ids))


def _numpy(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def model_name(model: Bridge) -> str:
    """The bundled name or folder name of a local model, however the path was written; the full name of any other."""
    name = str(model.cfg.model_name)
    folder = Path(name).expanduser()
    return folder.resolve().name if folder.is_dir() or name.startswith(("/", ".", "~")) else name
