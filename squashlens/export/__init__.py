"""Convert results to what other tools draw: CircuitsVis, BertViz, and the saved attributions of inseq.

The tools get the numbers as they are. Above each drawing is a line with the name and unit of what was measured, because
the tools show any numbers in the same way as attention. CircuitsVis and BertViz are installed with the extra
`viewers`. `inseq` writes a file without the package of that name, whose dependencies exclude those of TransformerLens.
"""

from squashlens.export._conversions import bertviz, circuitsvis, inseq

__all__ = ["bertviz", "circuitsvis", "inseq"]


def __dir__() -> list[str]:
    return [*__all__]
