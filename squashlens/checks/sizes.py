"""Write sizes in bytes with decimal prefixes."""


def human(n_bytes: int | float) -> str:
    """A number of bytes as text with a decimal prefix.

    >>> human(8_300_000_000)
    '8.3 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
