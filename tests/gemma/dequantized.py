"""The block formats of Q4_K_M and Q4_1 files by their definitions, one value after the other: a slow twin."""

import struct
from collections.abc import Callable, Iterator


def _half(content: bytes, at: int) -> float:
    return struct.unpack_from("<e", content, at)[0]


def q8_0(block: bytes) -> list[float]:
    """32 signed bytes and a scale."""
    scale = _half(block, 0)
    return [scale * value for value in struct.unpack_from("<32b", block, 2)]


def q4_1(block: bytes) -> list[float]:
    """32 numbers of four bits with a scale and a minimum; low and high halves of a byte are 16 apart."""
    scale, minimum, packed = _half(block, 0), _half(block, 2), block[4:20]
    return [
        scale * value + minimum
        for value in (*[byte & 15 for byte in packed], *[byte >> 4 for byte in packed])
    ]


def q5_0(block: bytes) -> list[float]:
    """32 numbers of five bits from -16: the fifth bits are apart, and low and high halves of a byte are 16 apart."""
    scale, (fifth,) = _half(block, 0), struct.unpack_from("<I", block, 2)
    low = [(block[6 + i] & 15) | (fifth >> i & 1) << 4 for i in range(16)]
    high = [(block[6 + i] >> 4) | (fifth >> (i + 16) & 1) << 4 for i in range(16)]
    return [scale * (value - 16) for value in (*low, *high)]


def q4_k(block: bytes) -> list[float]:
    """256 numbers of four bits; each 32 have a scale and a minimum of six bits, of which eight lie in twelve bytes."""
    scale, minimum, packed = _half(block, 0), _half(block, 2), block[4:16]
    found: list[float] = []
    for group in range(8):
        if group < 4:
            factor, offset = packed[group] & 63, packed[group + 4] & 63
        else:
            factor = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            offset = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        start = 16 + group // 2 * 32
        nibbles = [block[start + i] >> 4 * (group % 2) & 15 for i in range(32)]
        found += [scale * factor * value - minimum * offset for value in nibbles]
    return found


def q6_k(block: bytes) -> list[float]:
    """256 numbers of six bits from -32; each 16 have a scale of eight bits."""
    scales, scale = struct.unpack_from("<16b", block, 192), _half(block, 208)
    found: list[float] = []
    for half in range(2):
        for quarter in range(4):
            for i in range(32):
                low = (
                    block[64 * half + i + 32 * (quarter % 2)] >> 4 * (quarter // 2) & 15
                )
                high = block[128 + 32 * half + i] >> 2 * quarter & 3
                factor = scales[8 * half + 2 * quarter + i // 16]
                found.append(scale * factor * ((low | high << 4) - 32))
    return found


FORMATS: dict[str, tuple[int, Callable[[bytes], list[float]]]] = {
    "Q8_0": (34, q8_0),
    "Q4_1": (20, q4_1),
    "Q5_0": (22, q5_0),
    "Q4_K": (144, q4_k),
    "Q6_K": (210, q6_k),
}


def first_values(content: bytes, kind: str) -> Iterator[float]:
    """The values of some blocks."""
    size, values = FORMATS[kind]
    for start in range(0, len(content), size):
        yield from values(content[start : start + size])
