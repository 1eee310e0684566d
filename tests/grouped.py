"""Options as a flat dict, in the groups in which a function takes them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import squashlens as sl
from squashlens.checks.arguments import options_of


def in_groups(function: Callable[..., Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a function, from its options by name: `n_probes` is an entry of `method`."""
    parameters = inspect.signature(function, eval_str=True).parameters
    owners = {inner: name for name, one in parameters.items() for inner in options_of(one.annotation)}
    found: dict[str, Any] = {}
    for name, value in flat.items():
        owner = owners.get(name)
        if owner is None or (name == owner and isinstance(value, Mapping)):
            found[name] = value
        else:
            found.setdefault(owner, {})[name] = value
    return found


class _Flat:
    """The public measurements, which here take every option by its own name: `flat.jacobian_norms(…, n_probes=4)`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(sl, name)

        def call(*given: Any, **options: Any) -> Any:
            return function(*given, **in_groups(function, options))

        return call


flat = _Flat()
