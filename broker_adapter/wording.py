"""Parts of texts for people."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str, verb: tuple[str, str] | None = None) -> str:
    """A number with its noun, in the singular for one: ``2 messages``, ``1 consumer is``.

    Args:
        number: how many.
        noun: what, in the singular.
        verb: its forms for one and for any other number, if it follows.
    """
    text = f"{number} {noun}" if number == 1 else f"{number} {noun}s"
    return text if verb is None else f"{text} {verb[number != 1]}"


def in_seconds(duration: float) -> str:
    """A number of seconds with its unit, to the millisecond: ``0.3 s``, also where it was computed as 0.299998."""
    return f"{round(duration, 3) or duration:.10g} s"


def in_bytes(number: int) -> str:
    """A number of bytes with its unit: ``3.4 GiB``."""
    size = float(number)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def why_unencodable(error: Exception) -> str:
    """Why a value has no form in bytes; a text that is not valid Unicode is shown."""
    return f"{error.object!r:.100} is not valid Unicode" if isinstance(error, UnicodeEncodeError) else str(error)


def most_similar(name: str, known: Iterable[str]) -> str:
    """Return what follows an unknown name: the known one that is the most similar to it, whatever their case; empty:
    none is.

    Args:
        name: that is unknown.
        known: those that there are.
    """
    from difflib import get_close_matches  # only where a name is misspelt

    by_lower = {each.lower(): each for each in known}
    return "".join(
        f"; the most similar one is {by_lower[each]!r}" for each in get_close_matches(name.lower(), by_lower, 1)
    )
