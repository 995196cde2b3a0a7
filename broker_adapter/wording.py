"""Parts of texts for people."""

from __future__ import annotations


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


def why_unencodable(error: Exception) -> str:
    """Why a value has no form in bytes; a text that is not valid Unicode is shown."""
    return f"{error.object!r:.100} is not valid Unicode" if isinstance(error, UnicodeEncodeError) else str(error)
