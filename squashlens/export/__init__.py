"""Convert results to what other tools draw: CircuitsVis, and the saved attributions of inseq.

The tools get the numbers as they are. Above each drawing is a line with the name and unit of what was measured, because
CircuitsVis shows any numbers in the same way as attention; it is installed with the extra `viewers`. `inseq` writes a
file without the package of that name, whose dependencies exclude those of TransformerLens.
"""

from squashlens.export._conversions import circuitsvis, inseq

__all__ = ["circuitsvis", "inseq"]


def __dir__() -> list[str]:
    return [*__all__]
