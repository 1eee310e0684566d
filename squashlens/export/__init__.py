"""Convert results to what CircuitsVis draws.

It gets the numbers as they are. Above each drawing is a line with the name and unit of what was measured, because
CircuitsVis shows any numbers in the same way as attention. It is installed with the extra `viewers`.
"""

from squashlens.export._circuitsvis import circuitsvis

__all__ = ["circuitsvis"]


def __dir__() -> list[str]:
    return [*__all__]
