"""Compile three RASP programs with tracr and store their weights, from which `test_programs.py` builds models.

tracr needs JAX and Haiku, so this runs in an environment of its own. Run it again only to change a program:

    uv venv programs && uv pip install --python programs tracr-pypi==1.0.0
    programs/bin/python tests/oracles/compile_programs.py
"""

import json
from pathlib import Path

import numpy as np
from tracr.compiler import compiling
from tracr.rasp import rasp

SYMBOLS, LONGEST = ("a", "b", "c"), 7


def selected(which: str, of: rasp.SOp = rasp.indices) -> rasp.Select:
    """The selector that the programs share, by the key that a query looks for."""
    looks_for = {
        "previous": lambda k, q: k == q - 1,
        "first": lambda k, q: k == 0,
        "a": lambda k, q: k == "a",
    }
    return rasp.Select(of, of, looks_for[which])


PROGRAMS = {
    "previous": rasp.Aggregate(selected("previous"), rasp.tokens),
    "first": rasp.Aggregate(selected("first"), rasp.tokens),
    "count": rasp.SelectorWidth(selected("a", rasp.tokens)),
}


def main() -> None:
    """Write the weights as float64, and everything else as text, into one file."""
    arrays = {}
    for name, program in PROGRAMS.items():
        model = compiling.compile_rasp_to_model(
            program.named(name), set(SYMBOLS), LONGEST, causal=True
        )
        config = model.model_config
        described = {
            "config": {
                key: getattr(config, key)
                for key in (
                    "num_layers",
                    "num_heads",
                    "key_size",
                    "mlp_hidden_size",
                    "causal",
                    "layer_norm",
                )
            },
            "outputs": [
                [value, column]
                for value, column in model.output_encoder.encoding_map.items()
            ],
            "inputs": [
                [value, row] for value, row in model.input_encoder.encoding_map.items()
            ],
            "residual_labels": model.residual_labels,
        }
        arrays[f"{name}/described"] = np.array(json.dumps(described, default=str))
        for module, parts in model.params.items():
            for part, values in parts.items():
                arrays[f"{name}/{module}/{part}"] = np.asarray(values, dtype=np.float64)
        print(
            name,
            config,
            len(model.residual_labels),
            model.apply(["compiler_bos", *"abaca"]).decoded,
        )
    np.savez_compressed(Path(__file__).with_name("programs.npz"), **arrays)


if __name__ == "__main__":
    main()
