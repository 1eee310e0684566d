"""Record what inseq says of the bundled model, for `test_inseq.py`.

inseq cannot be installed beside TransformerLens, so this runs in an environment of its own. Its value zeroing expects
blocks that return tuples, which those of transformers 5 do not. Hence one environment for each method:

    uv venv one && uv pip install --python one inseq==0.7.1 torch==2.13.0 transformers==5.23.0
    one/bin/python tests/oracles/record_inseq.py saliency FOLDER_OF_THE_BUNDLED_MODEL
    uv venv other && uv pip install --python other inseq==0.7.1 torch==2.13.0 transformers==4.53.3
    other/bin/python tests/oracles/record_inseq.py value_zeroing FOLDER_OF_THE_BUNDLED_MODEL
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import inseq
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "How many ones ? 1101 ="  # as the tokenizer decodes it, which inseq asks for
OPTIONS = {"saliency": {"attributed_fn": "logit", "abs": False}, "value_zeroing": {}}


def main() -> None:
    """One forced next token, the likeliest: the gradient of its logit, or value zeroing in every block."""
    method, source = sys.argv[1:]
    kept = Path(__file__).with_name("inseq.json")
    found = json.loads(kept.read_text()) if kept.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(source, Path(scratch, "model"))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["tokenizer_class"] = (
            "PreTrainedTokenizerFast"  # which every version of transformers has
        )
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        plain = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        ).eval()
        ids = tokenizer(PROMPT, return_tensors="pt").input_ids
        with torch.no_grad():
            best = plain(ids).logits[0, -1].argmax()
        whole = tokenizer.decode(
            torch.cat([ids[0], best[None]]), skip_special_tokens=True
        )
        model = inseq.load_model(plain, method, tokenizer=str(folder))
        one = model.attribute(
            PROMPT, whole, show_progress=False, **OPTIONS[method]
        ).sequence_attributions[0]
        numbers = np.array(one.target_attributions.tolist(), dtype=float)
        print(method, numbers.shape, [token.id for token in one.target])
        found[method] = {
            "prompt": PROMPT,
            "ids": [token.id for token in one.target],
            "transformers": transformers.__version__,
            # A token's gradient is summarized by its root sum of squares, as inseq shows it.
            "scores": (
                np.linalg.norm(numbers[:, 0], axis=-1)
                if method == "saliency"
                else numbers[:, 0]
            ).tolist(),
        }
    kept.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
