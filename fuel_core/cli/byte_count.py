"""How a number of bytes is written for people."""

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def byte_count(count: int) -> str:
    """As ``57,344 bytes (56.0 KiB)``: the exact number, and one to remember."""
    exact = f"{count:,} bytes"
    if count < 1024:
        return exact
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{exact} ({count / 1024**power:.1f} {_UNITS[power - 1]})"
